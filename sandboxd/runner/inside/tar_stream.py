"""The tar format as a stream: headers out, entries in. Pure: bytes in, bytes out, never a file.

Writes the pax format. Reads ustar, pax and GNU long names, in pieces of any size. What a header may take is bounded,
so memory does not depend on the archive. Names are bytes, because a file's name is.
"""

from __future__ import annotations

import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK_BYTES = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK_BYTES)
MAX_NAME_BYTES = 16_384
"""The bound of an entry's name. Programs use paths of up to 4096 bytes, but directories may be nested deeper."""
MAX_METADATA_BYTES = 262_144
"""The bound of a pax header or long name, which is held in memory."""
FILE, HARD_LINK, LINK, DIRECTORY = tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE

_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_REFUSED = {
    tarfile.CHRTYPE: "it is a device",
    tarfile.BLKTYPE: "it is a device",
    tarfile.FIFOTYPE: "it is a FIFO",
    tarfile.GNUTYPE_SPARSE: "it is a sparse file; write the archive without --sparse",
}
_MAX_SECONDS = 1 << 40
_MAX_BYTES = 1 << 62


class NotTar(Exception):
    """The stream is not a tar archive, or not one that can be read."""


class TarEntry:
    """An entry of an archive. A regular file's content follows it in the stream."""

    __slots__ = ("link", "mode", "mtime_ns", "name", "refusal", "size", "type")

    def __init__(self, kind: bytes, name: bytes, mode: int, mtime_ns: int, size: int = 0, link: bytes = b"") -> None:
        self.type = kind
        self.name = name
        self.mode = mode
        self.mtime_ns = mtime_ns
        self.size = size
        self.link = link
        self.refusal = ""
        """Why an entry of this kind is never extracted."""


def pack_header(entry: TarEntry) -> bytes:
    """Return what precedes the entry's content."""
    header = tarfile.TarInfo(entry.name.decode("utf-8", "surrogateescape"))
    header.type = entry.type
    header.mode = entry.mode
    header.size = entry.size
    header.linkname = entry.link.decode("utf-8", "surrogateescape")
    header.mtime, fraction_ns = divmod(entry.mtime_ns, 1_000_000_000)
    if fraction_ns or header.mtime < 0:
        header.pax_headers = {"mtime": _decimal(entry.mtime_ns)}
        header.mtime = max(0, header.mtime)
    return header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding_of(size: int) -> bytes:
    """Return what follows a content of this size."""
    return bytes(-size % BLOCK_BYTES)


def _decimal(nanoseconds: int) -> str:
    seconds, fraction_ns = divmod(abs(nanoseconds), 1_000_000_000)
    return f"{'-' if nanoseconds < 0 else ''}{seconds}.{fraction_ns:09d}"


class TarReader:
    """Cuts a stream into entries and the pieces of their contents. Holds at most one header."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = BLOCK_BYTES
        self._read = self._take_header
        self._content_left = self._padding_left = 0
        self._pax: dict[bytes, bytes] = {}
        self._long_name = self._long_link = b""
        self.is_over = False
        """Whether the end of the archive was seen; what follows it is ignored."""

    def feed(self, piece: bytes) -> Iterator[TarEntry | memoryview]:
        """Yield every complete entry, and what has arrived of their contents. Raise NotTar at the first invalid byte.

        The pieces after a file's entry have its size in total.
        """
        rest = memoryview(piece)
        while rest and not self.is_over:
            if self._content_left:
                yield rest[: self._content_left]
                taken = min(len(rest), self._content_left)
                self._content_left -= taken
            elif self._padding_left:
                taken = min(len(rest), self._padding_left)
                self._padding_left -= taken
            else:
                taken = min(len(rest), self._needed - len(self._buffer))
                self._buffer += rest[:taken]
                if len(self._buffer) == self._needed:
                    block = bytes(self._buffer)
                    self._buffer.clear()
                    entry = self._read(block)
                    if entry is not None:
                        yield entry
            rest = rest[taken:]

    def _take_header(self, block: bytes) -> TarEntry | None:
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            self.is_over = True
            return None
        except (tarfile.TarError, ValueError) as error:
            raise NotTar(f"it has an invalid header ({error})") from None
        if not 0 <= header.size < _MAX_BYTES:
            raise NotTar("an entry has an invalid size")
        if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            self._expect(header.size, self._take_pax)
        elif header.type == tarfile.XGLTYPE:  # its fields are defaults and comments, of which none is needed
            self._skip(header.size)
        elif header.type == tarfile.GNUTYPE_LONGNAME:
            self._expect(header.size, self._take_long_name)
        elif header.type == tarfile.GNUTYPE_LONGLINK:
            self._expect(header.size, self._take_long_link)
        else:
            return self._entry(header)
        return None

    def _expect(self, size: int, read: Callable[[bytes], None]) -> None:
        """Collect a header's body, which `read` takes."""
        if size > MAX_METADATA_BYTES:
            raise NotTar(f"an entry has a header of {size} bytes, and the limit is {MAX_METADATA_BYTES}")
        padding = -size % BLOCK_BYTES

        def take(block: bytes) -> None:
            self._read, self._needed = self._take_header, BLOCK_BYTES
            read(block[:size])

        if size:
            self._read, self._needed = take, size + padding

    def _skip(self, size: int) -> None:
        self._padding_left = size + -size % BLOCK_BYTES

    def _take_pax(self, body: bytes) -> None:
        start = 0
        while start < len(body):
            space = body.find(b" ", start, start + 20)
            length = body[start:space]
            end = start + int(length) if space > start and length.isdigit() else 0
            if not space < end <= len(body) or body[end - 1 : end] != b"\n":
                raise NotTar("it has an invalid pax header")
            name, _, value = body[space + 1 : end - 1].partition(b"=")
            if name.startswith(b"GNU.sparse."):
                name, value = b"GNU.sparse", b"1"
            if name in (b"path", b"linkpath", b"size", b"mtime", b"GNU.sparse"):
                self._pax[name] = value
            start = end

    def _take_long_name(self, body: bytes) -> None:
        self._long_name = body.partition(b"\0")[0]

    def _take_long_link(self, body: bytes) -> None:
        self._long_link = body.partition(b"\0")[0]

    def _entry(self, header: tarfile.TarInfo) -> TarEntry:
        pax, self._pax = self._pax, {}
        long_name, self._long_name = self._long_name, b""
        long_link, self._long_link = self._long_link, b""
        name = pax.get(b"path") or long_name or header.name.encode("utf-8", "surrogateescape")
        link = pax.get(b"linkpath") or long_link or header.linkname.encode("utf-8", "surrogateescape")
        if len(name) > MAX_NAME_BYTES or len(link) > MAX_NAME_BYTES:
            raise NotTar(f"an entry's name has more than {MAX_NAME_BYTES} bytes")
        size = _read_size(pax[b"size"]) if b"size" in pax else header.size
        if abs(header.mtime) > _MAX_SECONDS:
            raise NotTar("an entry has an invalid time")
        mtime_ns = _read_time(pax[b"mtime"]) if b"mtime" in pax else int(header.mtime) * 1_000_000_000
        kind = header.type
        if kind in _FILES:
            kind = DIRECTORY if header.type == tarfile.AREGTYPE and name.endswith(b"/") else FILE
        entry = TarEntry(kind, name, header.mode, mtime_ns, size if kind == FILE else 0, link)
        if kind in _REFUSED:
            entry.refusal = _REFUSED[kind]
        elif b"GNU.sparse" in pax:
            entry.refusal = _REFUSED[tarfile.GNUTYPE_SPARSE]
        elif kind not in (FILE, HARD_LINK, LINK, DIRECTORY):
            entry.refusal = f"its type {kind.decode('ascii', 'replace')!r} is unknown"
        if kind == FILE:
            self._content_left, self._padding_left = size, -size % BLOCK_BYTES
        return entry


def _read_size(text: bytes) -> int:
    if not (text.isdigit() and len(text) < 20 and int(text) < _MAX_BYTES):
        raise NotTar("an entry has an invalid size")
    return int(text)


def _read_time(text: bytes) -> int:
    """Return a decimal number of seconds in nanoseconds; a float has too few digits."""
    seconds, _, fraction = text.lstrip(b"-").partition(b".")
    if not seconds.isdigit() or len(seconds) > 12 or int(seconds) > _MAX_SECONDS or not (fraction or b"0").isdigit():
        raise NotTar("an entry has an invalid time")
    nanoseconds = int(seconds) * 1_000_000_000 + int(fraction[:9].ljust(9, b"0"))
    return -nanoseconds if text.startswith(b"-") else nanoseconds
