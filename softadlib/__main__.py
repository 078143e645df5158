"""`python -m softadlib` is the `softad` command."""

from softadlib.workbook.cli import main

raise SystemExit(main())
