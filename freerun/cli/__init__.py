"""The command line. While its modules are imported, Ctrl-C ends the program at once and without a traceback; `main`
then takes it over."""

import signal
import sys
from pathlib import PurePath

if PurePath(sys.argv[0]).name in ("freerun", "-m") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
