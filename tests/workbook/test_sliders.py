"""Sliders in a kernel, moved as a browser moves them: by messages, while a picture is being drawn."""

import time

import pytest
from jupyter_client.manager import start_new_kernel

PAGE = """\
import time
import ipywidgets
import matplotlib
matplotlib.use("agg")
from matplotlib import pyplot as plt
from softadlib.workbook.pages.sliders import sliders

drawn = []

def draw(theta):
    drawn.append(theta)
    time.sleep(1)
    if theta > 0.7:
        raise ValueError("too large")
    figure = plt.figure(figsize=(1, 1))
    figure.text(0, 0.5, theta)
    return figure

slider = ipywidgets.FloatSlider(0.1, min=0, max=0.9, step=0.1, description="θ")
box = sliders(draw, theta=slider)
status, picture = box.children[-2:]
print(slider.model_id, status.model_id, picture.model_id)
"""


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(kernel_name="python3")
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


class Browser:
    """What a browser sees of the page: the line of the status, and how many pictures have come."""

    def __init__(self, client):
        self.client = client
        self.events = []
        self.slider, self.status, self.picture = self.printed(PAGE).split()

    def printed(self, code):
        """Run a cell and return what it printed."""
        request = self.client.execute(code)
        text = ""
        while True:
            message = self.receive()
            if message["parent_header"].get("msg_id") != request:
                continue
            text += message["content"].get("text", "")
            if message["content"].get("execution_state") == "idle":
                return text

    def receive(self):
        message = self.client.get_iopub_msg(timeout=60)
        content = message["content"]
        if message["msg_type"] == "comm_msg":
            state = content["data"].get("state", {})
            if content["comm_id"] == getattr(self, "status", None) and "value" in state:
                self.events.append(state["value"])
            if content["comm_id"] == getattr(self, "picture", None):
                self.events.append("picture")
        return message

    def move(self, value):
        data = {"method": "update", "state": {"value": value}, "buffer_paths": []}
        content = {"comm_id": self.slider, "data": data}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", content))

    def wait_for(self, event):
        while event not in self.events:
            self.receive()


def test_the_newest_wish_alone_is_drawn_and_the_page_says_so(kernel):
    page = Browser(kernel)
    page.wait_for("picture")
    assert page.printed("print(drawn)") == "[0.1]\n"

    page.events.clear()
    page.move(0.2)
    page.wait_for("busy: θ = 0.2")
    time.sleep(0.6)  # it is being drawn
    for value in (0.3, 0.4, 0.5, 0.6):
        page.move(value)
    page.wait_for("busy: θ = 0.6")
    page.events.clear()
    page.wait_for("")
    assert page.events == ["picture", ""], "busy until its picture is there"
    assert page.printed("print(drawn)") == "[0.1, 0.2, 0.6]\n", "no queue"

    page.events.clear()
    page.move(0.8)
    page.wait_for("ValueError: too large")
    page.move(0.4)
    page.wait_for("picture")
    assert page.printed("print(drawn[-2:], plt.get_fignums())") == "[0.8, 0.4] []\n"
