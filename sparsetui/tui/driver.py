"""The terminal's input, heard so that Esc is not late.

Esc is also how the sequences of other keys begin: only time tells. Textual looks for more after 100 ms, and looks ten times
a second, so that an Esc came 100 to 200 ms late. Here it comes after :data:`ESCAPE_S`, as in an editor.
"""

from __future__ import annotations

import codecs
import os
import selectors

from textual import constants
from textual._parser import ParseError
from textual._time import get_time
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

# A key's sequence comes in one piece, also over SSH. ESCDELAY in the environment, in ms, says otherwise.
ESCAPE_S = 0.04
LOOK_S = 0.1  # how often the thread looks whether the app has ended


def patience(due: float | None, now: float) -> float:
    """Seconds to wait for input: until the begin of a sequence counts as Esc (at ``due``), and never longer than LOOK_S."""
    return LOOK_S if due is None else min(LOOK_S, max(0.0, due - now))


class PromptDriver(LinuxDriver):
    """Textual's driver with a keyboard that is heard in time."""

    def run_input_thread(self) -> None:
        """Read keys until the app ends. A byte that is no text is a mark, not the end of the app."""
        if "ESCDELAY" not in os.environ:
            setattr(constants, "ESCAPE_DELAY", ESCAPE_S)  # noqa: B010 (it is declared final)
        parser = XTermParser(self._debug)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(patience(parser._timeout_time, get_time())):
                    data = os.read(self.fileno, 4096)
                    if not data:  # the terminal is gone; its signal ends the app
                        break
                    text = decode(data)
                    for event in parser.feed(text) if text else ():  # nothing: the first half of a character
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
        try:
            for _ in parser.feed(""):
                pass
        except (EOFError, ParseError):
            pass
