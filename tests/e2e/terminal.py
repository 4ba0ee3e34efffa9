"""A terminal whose screen can be read."""

import os
import threading

import pexpect
import pyte


class Terminal:
    """A pty with a screen that can be read. A thread takes what the program writes, or it would come to a halt."""

    def __init__(self, command, environment, columns, rows, prepare=None):
        self.child = pexpect.spawn(
            command[0], command[1:], env=environment, dimensions=(rows, columns), encoding="utf-8", preexec_fn=prepare
        )
        self._screen = pyte.Screen(columns, rows)
        self._changed = threading.Condition()
        self._hung_up = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(pyte.Stream(self._screen),), daemon=True)
        self._reader.start()

    def _read(self, stream):
        while not self._hung_up.is_set():
            try:
                text = self.child.read_nonblocking(65536, timeout=0.2)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                return
            with self._changed:
                stream.feed(text)
                self._changed.notify_all()

    def until(self, *words):
        """Wait until the screen shows all the words; the screen."""

        def shown():
            text = "\n".join(self._screen.display)
            return text if all(word in text for word in words) else None

        with self._changed:
            found = self._changed.wait_for(shown, timeout=120)
            assert found, f"{words} never came; the screen is:\n" + "\n".join(self._screen.display)
            return found

    def press(self, keys):
        self.child.send(keys)

    def hang_up(self):
        """The line is dropped; the program must end of that. Its exit status, negative for a signal."""
        self._hung_up.set()
        self._reader.join()
        os.close(self.child.child_fd)
        _, status = os.waitpid(self.child.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def left(self):
        """What stands on the screen when the program has left it, without line breaks."""
        self._reader.join(120)
        return "".join(self._screen.display)

    def exit_status(self):
        self._reader.join(120)
        self.child.close()
        return self.child.exitstatus
