"""The OCI image layout 1.1: descriptors, one manifest for each library, the index, the annotations.

Everything here is pure: values to canonical bytes and back. Media types carry a version; a changed
meaning gets a new one.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pyharness.canonical import canonical_json, parse_canonical
from pyharness.errors import InputError
from pyharness.files import sha256_bytes
from pyharness.values import BACKENDS, Digest, LibraryFacts

LAYOUT_FILE = "oci-layout"
LAYOUT_BYTES = canonical_json({"imageLayoutVersion": "1.0.0"})  # what layouts of 1.1 say too
INDEX_FILE = "index.json"
BLOBS = "blobs/sha256"

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
LIBRARY_TYPE = "application/vnd.vllm-cuda.library.v1"  # the artifact
ELF_TYPE = "application/vnd.vllm-cuda.library.elf.v1"  # its first layer: the shared library
RECORD_TYPE = "application/vnd.vllm-cuda.record.v1+json"  # its second layer: the record of a run

TITLE = "org.opencontainers.image.title"
CREATED = "org.opencontainers.image.created"
REVISION = "org.opencontainers.image.revision"
REF_NAME = "org.opencontainers.image.ref.name"
KIND, LABEL, WHY = "vnd.vllm-cuda.kind", "vnd.vllm-cuda.label", "vnd.vllm-cuda.why"
SIZE, ABI, SYMBOLS = "vnd.vllm-cuda.size", "vnd.vllm-cuda.abi-version", "vnd.vllm-cuda.symbols"
BACKEND, BITS = "vnd.vllm-cuda.backend", "vnd.vllm-cuda.bits-version"
BUILD_INFO = "vnd.vllm-cuda.build-info"  # all of vcuda_build_info, as canonical JSON

EMPTY_CONFIG = b"{}"
ELF_HEADER_BYTES = 64
# the rolling copies: the last accepted library of each backend
ACCEPTED_TAGS = {"cpu": "accepted", "cuda": "accepted-cuda"}
_DEVICE_CODE = b"\0.nv_fatbin\0"  # a section's name, in the table of names
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def blob_path(digest: Digest) -> str:
    return f"{BLOBS}/{digest.hex}"


def check_label(label: str) -> str:
    """A label is a tag in the index: letters, digits, dots, dashes and underscores."""
    if not _LABEL.fullmatch(label):
        raise InputError(
            f"label {label!r}: use up to 63 letters, digits, '.', '_' and '-', a letter or digit "
            "first"
        )
    if label in ACCEPTED_TAGS.values() or re.fullmatch(r"[0-9a-f]{64}", label):
        raise InputError(f"label {label!r}: is reserved, choose another")
    return label


@dataclass(frozen=True)
class Layer:
    """What a manifest says of one blob."""

    media_type: str
    digest: Digest
    size_bytes: int
    annotations: tuple[tuple[str, str], ...] = ()

    @property
    def descriptor(self) -> dict[str, Any]:
        described = {
            "mediaType": self.media_type, "digest": str(self.digest), "size": self.size_bytes
        }  # fmt: skip
        return described | ({"annotations": dict(self.annotations)} if self.annotations else {})

    def annotation(self, key: str) -> str:
        return dict(self.annotations).get(key, "")


@dataclass(frozen=True)
class Manifest:
    """A library, alone or with the record of the run that it was added or accepted for."""

    library: Layer
    record: Layer | None
    annotations: tuple[tuple[str, str], ...]

    def to_bytes(self) -> bytes:
        layers = [self.library, self.record] if self.record else [self.library]
        return canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "artifactType": LIBRARY_TYPE,
                "config": empty_config().descriptor,
                "layers": [layer.descriptor for layer in layers],
                "annotations": dict(self.annotations),
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """ValueError unless these are exactly the bytes that ``to_bytes`` gives."""
        value = parse_canonical(data)
        try:
            layers = [_layer(v) for v in value["layers"]]
            kinds = tuple(layer.media_type for layer in layers)
            annotations = tuple(sorted(value["annotations"].items()))
        except (KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"not the manifest of a library: {e!r}") from None
        if kinds not in ((ELF_TYPE,), (ELF_TYPE, RECORD_TYPE)):
            raise ValueError(f"not the manifest of a library: its layers are {kinds}")
        made = cls(layers[0], layers[1] if layers[1:] else None, annotations)
        if made.to_bytes() != data:
            raise ValueError("not the manifest of a library: further or other fields")
        return made


def empty_config() -> Layer:
    return Layer(EMPTY_TYPE, sha256_bytes(EMPTY_CONFIG), len(EMPTY_CONFIG))


def library_layer(data: bytes, file_name: str, facts: LibraryFacts | None) -> Layer:
    """The library as its manifest describes it; what a worker saw of it becomes annotations."""
    annotations = {TITLE: file_name, SIZE: str(len(data))}
    if facts:
        info = facts.build_info
        annotations |= {
            ABI: str(facts.abi_version),
            SYMBOLS: " ".join(facts.symbols),
            BUILD_INFO: canonical_json(info, floats=True).decode(),
        }
        named = {BACKEND: "backend", BITS: "bits_version", REVISION: "revision"}
        annotations |= {key: str(info[field]) for key, field in named.items() if field in info}
    elif holds_device_code(data):
        annotations[BACKEND] = "cuda"
    return Layer(ELF_TYPE, sha256_bytes(data), len(data), tuple(sorted(annotations.items())))


def holds_device_code(data: bytes | mmap.mmap) -> bool:
    """Whether a shared library carries code for an NVIDIA GPU; nothing is loaded."""
    return data.find(_DEVICE_CODE) >= 0


def backend_of(library: Layer) -> str:
    """Whose baseline a library can be. One that runs on the host, whatever it calls its backend, is
    a ``cpu`` one.
    """
    said = library.annotation(BACKEND)
    return said if said in BACKENDS else BACKENDS[0]


def promised_digest(path: Path) -> Digest | None:
    """The digest that a blob of an image layout has by its name; None of any other file."""
    real = path.resolve()
    in_layout = real.parent.as_posix().endswith(f"/{BLOBS}")
    return Digest(real.name) if in_layout and re.fullmatch("[0-9a-f]{64}", real.name) else None


def require_shared_library(head: bytes, name: str) -> None:
    """InputError unless a file that begins with these bytes is an ELF shared object.
    ``ELF_HEADER_BYTES`` are enough.
    """
    if not head:
        raise InputError(f"{name}: the file is empty")
    if head[:4] != b"\x7fELF" or len(head) < ELF_HEADER_BYTES:
        raise InputError(f"{name}: not a shared library (no ELF file)")
    order: Literal["big", "little"] = "big" if head[5] == 2 else "little"
    if int.from_bytes(head[16:18], order) != 3:  # e_type ET_DYN
        raise InputError(f"{name}: an ELF file, but not a shared library")


def manifest_of(
    library: Layer, record: Layer | None, *, kind: str, label: str, why: str, time: str
) -> Manifest:
    said = {CREATED: time, KIND: kind, LABEL: label, WHY: why}
    return Manifest(library, record, tuple(sorted(said.items())))


def record_layer(data: bytes) -> Layer:
    return Layer(RECORD_TYPE, sha256_bytes(data), len(data), ((TITLE, "record.json"),))


def index_bytes(manifests: Sequence[tuple[Digest, int, str]]) -> bytes:
    """The index over (digest, size, tag); an empty tag names nothing but keeps the manifest
    referenced.
    """
    listed: list[dict[str, Any]] = []
    for digest, size, tag in manifests:
        item: dict[str, Any] = {
            "mediaType": MANIFEST_TYPE,
            "artifactType": LIBRARY_TYPE,
            "digest": str(digest),
            "size": size,
        }
        listed.append(item | ({"annotations": {REF_NAME: tag}} if tag else {}))
    return canonical_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": listed})


def named(data: bytes) -> str:
    """``sha256:<hex>`` of any bytes, for messages; no bytes have a name here, unlike anywhere
    else.
    """
    return f"sha256:{hashlib.sha256(data).hexdigest()}" if data else "an empty file"


def _layer(value: Any) -> Layer:
    annotations = tuple(sorted(value.get("annotations", {}).items()))
    return Layer(value["mediaType"], Digest.parse(value["digest"]), value["size"], annotations)
