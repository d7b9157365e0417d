"""Programs that mean harm. Nobody runs them but the sandbox.

ESCAPES print ESCAPED and what they got if they get out, and "held" if they do not. BOMBS try to use more than they may,
or to stay. FORGERIES want to pass without being right: tests are in `test_hostile.py`.

In an escape, @SECRET@ is a file of this machine that holds a secret, @PORT@ a port that listens on it, @SOCKET@ a unix
socket of it, @VICTIM@ a process on it, @MARK@ a name that must not turn up on it.
"""

from textwrap import dedent

ATTEMPT = """
import ctypes, os, signal, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
X86 = os.uname().machine == "x86_64"
"""


def _attempt(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in dedent(body).strip().splitlines())
    ends = "except BaseException as error:\n    print('held')\nelse:\n    print('ESCAPED', got)\n"
    return f"{ATTEMPT}\ngot = None\ntry:\n{lines}\n{ends}"


ESCAPES: dict[str, str] = {
    name: _attempt(body)
    for name, body in {
        # network
        "tcp to the host": "got = socket.create_connection(('127.0.0.1', @PORT@), 1)",
        "tcp elsewhere": "got = socket.create_connection(('192.0.2.1', 80), 1)",
        "udp": "got = socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @PORT@))",
        "tcp over ipv6": "got = socket.create_connection(('::1', @PORT@), 1)",
        "dns": "got = socket.gethostbyname('localhost.localdomain.example')",
        "a raw socket": "got = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "a packet socket": "got = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)",
        "netlink": "got = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        "vsock": "got = socket.socket(40, socket.SOCK_STREAM)",
        "alg socket": "got = socket.socket(38, socket.SOCK_SEQPACKET)",
        "a unix socket of the host": "s = socket.socket(socket.AF_UNIX); s.connect('@SOCKET@'); got = s",
        "an abstract socket of the host": "s = socket.socket(socket.AF_UNIX); s.connect('\\0@MARK@'); got = s",
        "a listening port": "s = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(); got = s",
        # files
        "the host's passwords": "got = open('/etc/shadow').read()",
        "the host's users": "got = open('/etc/passwd').read()",
        "a secret file": "got = open('@SECRET@').read()",
        "somebody's home": "got = [os.listdir(h) for h in ('/home', '/root/.ssh', os.path.expanduser('~root/.ssh'))]",
        "a symlink out": "os.symlink('@SECRET@', '/tmp/link'); got = open('/tmp/link').read()",
        "a hard link out": "os.link('/usr/bin/env', '/tmp/env'); got = 1",
        "dots out": "got = open('/tmp/../../../..' + '@SECRET@').read()",
        "writing to /usr": "open('/usr/@MARK@', 'w').write('x')",
        "writing to /": "open('/@MARK@', 'w').write('x')",
        "writing to /dev": "open('/dev/@MARK@', 'w').write('x')",
        "writing to the standard library": "open(os.path.dirname(os.__file__) + '/@MARK@.py', 'w').write('x')",
        "writing to the harness": "open('/freerun/inside/forkserver.py', 'a').write('x')",
        "replacing the harness": "os.rename('/freerun', '/tmp/freerun')",
        "chmod of a program": "os.chmod('/usr/bin/env', 0o777)",
        "a disk": "os.mknod('/tmp/disk', 0o60600, os.makedev(254, 0)); got = open('/tmp/disk', 'rb').read(10)",
        "the memory device": "got = open('/dev/mem', 'rb').read(1) or open('/dev/kmsg').read(1)",
        "the terminal": "got = open('/dev/tty', 'w')",
        # other processes
        "the parent's environment": "got = open(f'/proc/{os.getppid()}/environ').read()",
        "the parent's memory": "got = open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
        "all processes": "got = [open(f'/proc/{p}/cmdline').read() for p in os.listdir('/proc') if p.isdigit()]",
        "its own memory file": "got = open('/proc/self/mem', 'rb')",
        "killing a process of the host": "os.kill(@VICTIM@, signal.SIGKILL)",
        "ptrace": """
            number = 101 if X86 else 117
            got = [call(number, 16, pid, 0, 0) for pid in (1, os.getppid())]
        """,
        "reading another's memory": """
            here, there = ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)
            got = call(310 if X86 else 270, 1, here, 1, there, 1, 0)
        """,
        "taking another's files": "got = call(438, os.pidfd_open(1), 0, 0)",
        "another's limits": "import resource; got = resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))",
        # privileges
        "becoming root": "os.setuid(0) if os.getuid() else os.setgroups([1, 2]); got = os.getresuid()",
        "becoming another user": "os.setuid(1 + os.getuid())",
        "mount": "call(165 if X86 else 40, b'none', b'/tmp', b'tmpfs', 0, 0)",
        "the new mount calls": "got = call(430, b'tmpfs', 0)",
        "open_tree": "got = call(428, -100, b'/', 1)",
        "chroot": "os.mkdir('/tmp/r'); os.chroot('/tmp/r')",
        "pivot_root": "call(155 if X86 else 41, b'/tmp', b'/tmp')",
        "a user namespace": "call(272 if X86 else 97, 0x10000000)",
        "a user namespace by clone": "got = call(56 if X86 else 220, 0x10000000 | 17, 0, 0, 0, 0)",
        "a user namespace by clone3": """
            flags = (0x10000000).to_bytes(8, 'little')
            got = call(435, ctypes.create_string_buffer(flags + bytes(80)), 88)
        """,
        "another's namespaces": "call(308 if X86 else 268, os.pidfd_open(1), 0x20000000)",
        "a setuid program": """
            os.system('cp /usr/bin/env /tmp/suid && chmod 4755 /tmp/suid')
            got = subprocess.run(['su', '-c', 'id'], capture_output=True, check=True, stdin=subprocess.DEVNULL)
        """,
        "capabilities": "call(126 if X86 else 91, bytes.fromhex('2205082000000000'), bytes([255] * 24))",
        "keys": "got = call(250 if X86 else 219, 0, -3, 1)",
        "bpf": "got = call(321 if X86 else 280, 0, bytes(128), 128)",
        "io_uring": "got = call(425, 8, ctypes.create_string_buffer(120))",
        "perf events": "got = call(298 if X86 else 241, bytes(128), 0, -1, -1, 0)",
        "userfaultfd": "got = call(323 if X86 else 282, 1)",
        "a kernel module": "call(175 if X86 else 105, b'x', 1, b'')",
        "kexec": "call(246 if X86 else 104, 0, 0, 0, 0)",
        "reboot": "call(169 if X86 else 142, 0xfee1dead - (1 << 32), 672274793, 0x1234567, 0)",
        "setting the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
        "the kernel's log": "got = call(103 if X86 else 116, 3, ctypes.create_string_buffer(64), 64)",
        "naming the host": "socket.sethostname('@MARK@')",
        "file handles": "got = call(303 if X86 else 264, -100, b'/', bytes(64), bytes(8), 0)",
        "system v shared memory": "got = call(29 if X86 else 194, 1, 4096, 0o1600)",
        "a message queue": "got = call(240 if X86 else 180, b'@MARK@', 0o102, 0o600, 0)",
        "memory without a name": "got = os.memfd_create('x')",
        "watching files": "got = call(294 if X86 else 26, 0)",
        "another personality": "got = call(135 if X86 else 92, 8)",
        "typing into the terminal": "import fcntl; fcntl.ioctl(0, 0x5412, b'x')",
        "raising its limits": """
            import resource
            for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
                resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        """,
        "a higher priority": "os.nice(-5)",
        # what was here before
        "what a run before left": "got = [f for d in ('/tmp', '/dev/shm') for f in os.listdir(d)] or 1 / 0",
        "the environment": """
            ours = ('PATH', 'HOME', 'LANG', 'OPENBLAS_NUM_THREADS')
            got = [name for name in os.environ if name not in ours] or 1 / 0
        """,
    }.items()
}

_STAY = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(1000)\n"

BOMBS: dict[str, str] = {
    # processor
    "an endless loop": "while True: pass",
    "an endless loop in C": "sum(iter(int, 1))",
    "a loop deaf to signals": """
        import signal
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True: pass
    """,
    "loops in many processes": "import os\nfor _ in range(4): os.fork()\nwhile True: pass",
    "a regular expression": "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
    "a huge number": "x = 7 ** 10 ** 9",
    "a huge number as text": "import sys; sys.set_int_max_str_digits(0); print(len(str(7 ** 10 ** 7)))",
    # time
    "sleeping": "import time; time.sleep(1000)",
    "stopping itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "waiting for a thread": "import threading; threading.Thread(target=threading.Event().wait).start()",
    "waiting for input": "import os; r, w = os.pipe(); os.read(r, 1)",
    # processes
    "a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "a thread bomb": "import threading\nwhile True: threading.Thread(target=threading.Event().wait).start()",
    "a daemon": f"{_STAY}print('bye')",
    "a daemon in a loop": f"{_STAY}while True: pass",
    "killing everybody": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "killing its init": "import os, signal; os.kill(1, signal.SIGKILL); os.kill(os.getppid(), signal.SIGKILL)",
    # memory
    "a list without end": "x = [0]\nwhile True: x += x",
    "one big allocation": "x = bytearray(8 << 30); print(len(x))",
    "private memory": "import mmap\nx = mmap.mmap(-1, 4 << 30, mmap.MAP_PRIVATE); x.write(bytes(4 << 30))",
    "shared memory": """
        import mmap
        kept = []
        while True:
            kept.append(mmap.mmap(-1, 1 << 27))
            kept[-1].write(b'x' * (1 << 27))
    """,
    "memory in many processes": """
        import os, time
        for _ in range(8):
            if os.fork() == 0:
                x = bytearray(b'x') * (100 << 20)
                time.sleep(1000)
        time.sleep(1000)
    """,
    # files
    "output without end": "while True: print('x' * 10000)",
    "errors without end": "import sys\nwhile True: sys.stderr.write('x' * 10000)",
    "10 MB of output": "print('x' * 10_000_000)",
    "a huge file": "f = open('/tmp/x', 'wb')\nwhile True: f.write(bytes(1 << 20))",
    "a huge sparse file": "import os; os.truncate(open('/tmp/x', 'wb').fileno(), 1 << 40)",
    "many large files": "for n in range(1000): open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))",
    "many small files": "for n in range(100_000): open(f'/dev/shm/{n}', 'wb')",
    "many open files": "x = [open('/dev/null') for _ in range(100_000)]",
    "many pipes": "import os\nx = [os.pipe() for _ in range(100_000)]",
    # crashes
    "deep recursion": "def f(): f()\nf()",
    "deeper recursion": """
        import sys
        sys.setrecursionlimit(1 << 30)
        class Deep:
            def __getattr__(self, name): return getattr(self, name)
        Deep().x
    """,
    "the end of the stack": """
        import ctypes
        compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        import sys; sys.setrecursionlimit(1 << 30)
        def again(a, b): return ctypes.CDLL(None).qsort(ctypes.create_string_buffer(8), 2, 4, hook)
        hook = compare(again)
        again(0, 0)
        raise SystemExit(1)  # Python 3.12 sees the end coming
    """,
    "a null pointer": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "a signal without a name": "import os; os.kill(os.getpid(), 40)",
    "timers": "import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01); time.sleep(1000)",
    # odd things
    "closing all files": "import os; os.closerange(0, 1024); print('x')",
    "bytes that are no text": "import sys; sys.stdout.buffer.write(b'\\xff\\x00\\xfe' * 100); raise SystemExit(1)",
    "half a character": "print('\\ud800')",
    "a null byte": "x = 1\0",
    "nested brackets": "x = " + "(" * 100_000,
    "nested signs": "x = " + "-" * 1_000_000 + "1",
    "10 MB of source": "x = '" + "y" * 10_000_000 + "'; raise SystemExit(1)",
    "exit handlers without end": """
        import atexit
        def again(): atexit.register(again)
        again()
        atexit.register(lambda: [0 for _ in iter(int, 1)])
    """,
}

SEARCH = """
import gc, sys
def find():
    frame = sys._getframe()
    while frame:
        yield frame.f_globals
        yield frame.f_locals
        frame = frame.f_back
    yield from gc.get_objects()
"""

FORGERIES: dict[str, str] = {
    "leaving while loading": "import sys; sys.exit(0)",
    "leaving at once while loading": "import os; os._exit(0)",
    "leaving": "def square(n): raise SystemExit(0)",
    "leaving at once": "import os\ndef square(n): os._exit(0)",
    "leaving the first time only": "import os\ndef square(n):\n    if n < 0: os._exit(0)\n    return n * n",
    "saying that all is well": """
        print('{"test": 0, "ok": true}')
        print('{"done": true}')
        def square(n): return None
    """,
    "saying so everywhere": """
        import os
        for number in range(64):
            try: os.write(number, b'{"test": 0, "ok": true, "detail": ""}\\n{"done": true}\\n')
            except OSError: pass
        def square(n): return None
    """,
    "equal to everything": """
        class Yes:
            def __eq__(self, other): return True
            def __ne__(self, other): return False
        def square(n): return Yes()
    """,
    "a number equal to everything": """
        class Yes(int):
            def __eq__(self, other): return True
            __hash__ = None
        def square(n): return Yes(0)
    """,
    "a float equal to everything": """
        class Yes(float):
            def __eq__(self, other): return True
        def square(n): return Yes(0)
    """,
    "a class equal to everything": """
        class Meta(type):
            def __eq__(self, other): return True
        class Yes(metaclass=Meta): pass
        def square(n): return Yes
    """,
    "near everything": """
        class Near:
            def __sub__(self, other): return 0.0
            __rsub__ = __sub__
            def __eq__(self, other): return True
        def square(n): return Near()
    """,
    "a function": "def square(n): return lambda *a, **k: True",
    "its own check": "def check(candidate): pass\ndef square(n): return None",
    "its own abs": "def abs(x): return 0\ndef square(n): return n * n + 1",
    "its own math": "class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef square(n): return n * n + 1",
    "patched builtins": """
        import builtins
        builtins.AssertionError = type('Never', (BaseException,), {})
        builtins.abs = lambda x: 0
        builtins.isinstance = lambda *a: True
        builtins.all = builtins.any = lambda x: True
        def square(n): return None
    """,
    "patched modules": """
        import json, math, os, sys, traceback, unittest
        math.isclose = lambda *a, **k: True
        json.dumps = lambda *a, **k: '["value", 9]'
        os._exit = sys.exit = lambda *a: None
        unittest.TestCase.assertEqual = lambda *a: None
        sys.excepthook = lambda *a: None
        def square(n): return None
    """,
    "a patched harness": """
        import sys
        for name, module in list(sys.modules.items()):
            if 'freerun' in name or name == '__main__':
                for key, value in list(vars(module).items()):
                    if callable(value) and not isinstance(value, type): setattr(module, key, lambda *a, **k: True)
        def square(n): return None
    """,
    "a trace function": """
        import sys
        sys.settrace(lambda *a: None)
        sys.setprofile(lambda *a: None)
        def square(n): return None
    """,
    "exit handlers": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef square(n): raise SystemExit(0)",
    "reading the tests in its frames": SEARCH
    + """
found = [o for o in find() if isinstance(o, dict) and isinstance(o.get('tests'), list)]
def square(n): return n * n if found else None
""",
    "reading the tests in its memory": SEARCH
    + """
found = [o for o in find() if isinstance(o, str) and 'assert candi' + 'date' in o]
def square(n): return n * n if found else None
""",
    "calling the reporter": SEARCH
    + """
def square(n):
    for o in find():
        if callable(o) and getattr(o, '__name__', '') in ('report', '_write_line', '<lambda>', '_run_test'):
            for args in (({'done': True},), (3, {'done': True})):
                try: o(*args)
                except BaseException: pass
    return None
""",
    "reading the harness": """
        import glob
        text = ''.join(open(f).read() for f in glob.glob('/freerun/**/*', recursive=True) if f.endswith('.py'))
        def square(n): return n * n if 'assert candidate(3) == 9' in text else None
    """,
    "reading its files": """
        import os
        text = b''
        for number in range(64):
            try: text += os.pread(number, 1 << 20, 0)
            except OSError: pass
        def square(n): return n * n if b'assert' in text else None
    """,
    "answering before it is asked": """
        import json, os
        for message in (['loaded'], ['value', True], ['value', {'held': 0}], ['value', 9], ['value', None]):
            body = json.dumps(message).encode()
            os.write(3, len(body).to_bytes(4, 'big') + body)
        def square(n): return None
    """,
    "output that is not text": """
        import json, os
        def square(n):
            body = json.dumps(['output', 9, [9]]).encode()
            os.write(3, len(body).to_bytes(4, 'big') + body)
            return n * n
    """,
    "output before the answer": """
        import json, os
        def square(n):
            body = json.dumps(['output', 'x' * 1000, '']).encode()
            for _ in range(100): os.write(3, len(body).to_bytes(4, 'big') + body)
            return None
    """,
    "talking nonsense": "import os\ndef square(n): os.write(3, b'\\xff' * 1000); return 9",
    "an endless answer": """
        import os
        def square(n):
            while True: os.write(3, b'\\x00\\xff\\xff\\xff' + b'[' * 1000)
    """,
    "a deep answer": """
        import os
        def square(n):
            body = b'[' * 200_000
            os.write(3, len(body).to_bytes(4, 'big') + body)
            return 9
    """,
    "hanging up": "import os\ndef square(n): os.close(3); return n * n",
    "killing its tests": "import os, signal\ndef square(n):\n    os.kill(-1, signal.SIGKILL)\n    return n * n",
    "stopping its tests": """
        import os, signal
        def square(n):
            for pid in range(1, 50):
                if pid != os.getpid():
                    try: os.kill(pid, signal.SIGSTOP)
                    except OSError: pass
            return None
    """,
    "signals to its tests": """
        import os, signal
        def square(n):
            for number in (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1, signal.SIGTERM, signal.SIGSEGV):
                for pid in range(1, 50):
                    if pid != os.getpid():
                        try: os.kill(pid, number)
                        except OSError: pass
            return None
    """,
    "a fork that answers for it": "import os\ndef square(n):\n    os.fork()\n    return None",
    "a fork bomb while loading": """
        import os
        while True:
            try: os.fork()
            except OSError: break
        def square(n): return None
    """,
    "raising": "def square(n): raise AssertionError",
    "raising what is no exception": "def square(n): raise KeyboardInterrupt",
    "an exception that says yes": """
        class Yes(Exception):
            def __eq__(self, other): return True
        def square(n): raise Yes
    """,
    "not a number": "def square(n): return float('nan')",
    "too large to send": "def square(n): return 'x' * (100 << 20)",
    "an endless generator": "def square(n):\n    while True: yield n * n",
    "itself inside itself": "def square(n):\n    x = []\n    x.append(x)\n    return x",
    "nothing at all": "def square(n): pass",
    "no such function": "def cube(n): return n ** 3",
    "only words": "I would rather not write any code today, thank you.",
}

CHEATS: dict[str, tuple[str, str]] = {
    # name: (what check(candidate) does, a program that would pass if they shared a process)
    "a test that forgives": (
        "    try:\n        candidate(-1)\n    except:\n        pass\n    assert 1 + 1 == 2",
        "import os\ndef square(n): os._exit(0)",
    ),
    "the test's own list": (
        "    values = [3, 1, 2]\n    assert candidate(values) == sorted(values)",
        "def square(values):\n    values.clear()\n    return []",
    ),
    "a forgotten import": ("    assert math.isclose(candidate(3), 9)", FORGERIES["its own math"]),
    "abs": ("    assert abs(candidate(3) - 9) < 1e-6", FORGERIES["its own abs"]),
    "nearness": ("    assert abs(candidate(3) - 9) < 1e-6", FORGERIES["near everything"]),
    "membership": (
        "    assert 9 in candidate(3)",
        "class All(list):\n    def __contains__(self, x): return True\ndef square(n): return All()",
    ),
    "being no other": (
        "    assert not candidate(3) != 9",
        FORGERIES["equal to everything"],
    ),
    "order": (
        "    assert 8 < candidate(3) < 10",
        "class All:\n    __lt__ = __gt__ = lambda s, o: True\ndef square(n): return All()",
    ),
    "a callback that leaks": (
        "    secret = 9\n    assert candidate(lambda x: x + 1) == secret",
        "def square(f):\n    return {**f.__globals__, **dict(enumerate(f.__closure__))}.get('secret')",
    ),
}
