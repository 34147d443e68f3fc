"""A proxy in front of a server that loses things: the connection breaks between a command and its answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote


class LossyProxy:
    """Passes bytes on between clients and the server at `url`, until it is told to lose an answer."""

    def __init__(self, url: str, folder: Path) -> None:
        self._server_path = unquote(url.removeprefix("unix://"))
        path = folder / "proxy.sock"
        self.url = f"unix://{quote(str(path))}"
        self.answers_lost = 0
        self.meanwhile: Callable[[], None] = lambda: None
        """Is called when an answer is lost, before its client can know."""
        self._to_lose = self._to_cut = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> LossyProxy:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for end in (self._listener, *self._sockets):
            _shut(end)
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._sockets):
            end.close()

    def lose_answers(self, count: int) -> None:
        """The next `count` answers of the server are dropped together with their connections; their commands are carried out."""
        self._to_lose = count

    def cut_answers(self, count: int) -> None:
        """Of the next `count` answers of the server only the first half arrives."""
        self._to_cut = count

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server_path)
            self._sockets += [client, server]
            for source, target, is_answer in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._pass_on, args=(source, target, is_answer))
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(65536):
                if is_answer and self._to_lose > 0:
                    self._to_lose -= 1
                    self.answers_lost += 1
                    self.meanwhile()
                    break
                if is_answer and self._to_cut > 0:
                    self._to_cut -= 1
                    self.answers_lost += 1
                    target.sendall(data[: len(data) // 2])
                    break
                target.sendall(data)
        except OSError:
            pass
        finally:
            _shut(source)
            _shut(target)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
