"""What Schemathesis is taught for the admin API: bodies that are no JSON, and answers of several lines.

Bodies are what they should be, the same with something broken in it, or anything at all.
"""

import base64
import hashlib
import io
import json
import tarfile

import jsonschema_rs
import schemathesis
from hypothesis import strategies as st


def tar(*members):
    """An archive of files: pairs of a name and bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def car(content):
    """An archive (CARv1) of one block of bare bytes, which is its root."""
    cid = b"\x01\x55\x12\x20" + hashlib.sha256(content).digest()
    # {"roots": [CID], "version": 1} in DAG-CBOR.
    header = b"\xa2\x65roots\x81\xd8\x2a\x58\x25\x00" + cid + b"\x67version\x01"
    block = cid + content
    assert len(header) < 128 and len(block) < 128, "a length is one byte"
    return bytes([len(header)]) + header + bytes([len(block)]) + block


def whole_or_broken(*whole):
    """Bytes that a media type is about; cut off, with a byte changed, or others altogether."""

    @st.composite
    def broken(draw):
        content = bytearray(draw(st.sampled_from(whole)))
        at = draw(st.integers(0, len(content) - 1))
        if draw(st.booleans()):
            return bytes(content[:at])
        content[at] ^= draw(st.integers(1, 255))
        return bytes(content)

    return st.one_of(st.sampled_from(whole), broken(), st.binary(max_size=512))


schemathesis.openapi.media_type("application/offset+octet-stream", st.binary(max_size=64))
schemathesis.openapi.media_type("application/octet-stream", st.binary(max_size=4096))
schemathesis.openapi.media_type(
    "application/vnd.ipld.car", whole_or_broken(car(b"one"), car(b"another"), car(b""))
)
schemathesis.openapi.media_type(
    "application/x-tar",
    whole_or_broken(tar(("a.txt", b"a")), tar(("site/index.html", b"<p>"), ("site/img/a.png", b"\x89PNG")), tar()),
)


FOLDER = "bafybeifitggiuuse56ijh5cn6e6dr6sxrimz7qcd6ubnrifyqi4xplemry"
FILE = "bafkreiatykwvzsdyongkn5xn7rf7pqgef5ohkxs245hhtc72bumg3dagvi"
ELSEWHERE = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
PEER = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
# Ed25519 in PKCS #8 (RFC 8410) and any 32 bytes.
KEY = base64.b64encode(bytes.fromhex("302e020100300506032b657004220420") + hashlib.sha256(b"a key").digest()).decode()

# Meaningful bodies: generated ones almost never are.
MEANT = {
    "POST /api/v0/block/put": [{"file": b"a block"}],
    "POST /api/v0/dag/import": [{"file": car(b"in a form")}],
    "POST /api/v0/dag/put": [{"file": b'{"a": [1, "two"], "b": {"/": "%s"}}' % FILE.encode()}],
    "POST /api/v1/denylists/local/rules": [
        {"cid": ELSEWHERE, "reason": "a test", "status": 451},
        {"path": f"/ipfs/{ELSEWHERE}/a", "below": True},
        {"name": "example.org", "double_hash": True},
        {"rule": f"!/ipfs/{ELSEWHERE}/a/b"},
    ],
    "PUT /api/v1/log/level": [{"level": "warn", "duration_seconds": 1}, {"level": "info,admin=debug"}],
    "POST /api/v1/names/keys": [{"name": "key"}, {"name": "other", "type": "ed25519"}],
    "POST /api/v1/names/keys/import": [
        {"name": "brought", "key": f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n"}
    ],
    "POST /api/v1/names/keys/{name}/rename": [{"to": "key"}, {"to": "other"}],
    "POST /api/v1/names/refresh": [{"name": "example.org"}, {"name": PEER}],
    "POST /api/v1/peers/connect": [{"address": f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}", "timeout_seconds": 1}],
    "POST /api/v1/purge": [
        {"cid": ELSEWHERE},
        {"path": f"/ipfs/{FOLDER}", "below": False},
        {"name": "example.org"},
        {"surrogate_key": ELSEWHERE},
    ],
    "POST /api/v1/store/have": [{"cids": [FOLDER, FILE, ELSEWHERE]}],
    "POST /api/v1/warm": [{"cid": FOLDER, "depth": 1}, {"path": f"/ipfs/{FOLDER}/img/a.png"}, {"cid": ELSEWHERE}],
    "POST /psa/pins": [{"cid": FOLDER, "name": "a name", "meta": {"a": "b"}}, {"cid": ELSEWHERE}],
    "POST /psa/pins/{requestid}": [{"cid": FILE}, {"cid": ELSEWHERE}],
}


@schemathesis.hook
def flatmap_body(context, body):
    """Every other body is one that means something."""
    meant = MEANT.get(context.operation.label)
    return st.just(body) if meant is None else st.one_of(st.just(body), st.sampled_from(meant))


def schema_of_a_line(operation, response):
    """What each line of an answer is to be, if it has lines: a media type for them, or what Kubo's RPC calls JSON."""
    media_type = response.headers.get("content-type", [""])[0].split(";")[0]
    described = operation.definition.raw["responses"].get(str(response.status_code), {})
    content = described.get("content", {}).get(media_type, {})
    return content.get("schema") if media_type == "application/x-ndjson" else content.get("x-line-schema")


@schemathesis.check
def lines_conform(ctx, response, case):
    """Each line of an answer that has lines is as the description says."""
    schema = schema_of_a_line(case.operation, response)
    if schema is None:
        return
    whole = {**schema, "components": case.operation.schema.raw_schema["components"]}
    validator = jsonschema_rs.Draft202012Validator(whole)
    for line in response.content.splitlines():
        wrong = next(validator.iter_errors(json.loads(line)), None)
        if wrong is not None:
            raise AssertionError(f"the line {line[:500]!r} does not fit: {wrong.message}")


@schemathesis.check
class MostSucceeds:
    """Most operations have done what they are for: that all is refused as the description says would show little."""

    def __init__(self, *, share):
        self.share = share
        self.asked = set()
        self.done = set()

    def after_response(self, ctx, response, case):
        self.asked.add(case.operation.label)
        if 200 <= response.status_code < 300:
            self.done.add(case.operation.label)

    def after_run(self, ctx):
        if len(self.done) < self.share * len(self.asked):
            raise AssertionError("never done: " + ", ".join(sorted(self.asked - self.done)))
