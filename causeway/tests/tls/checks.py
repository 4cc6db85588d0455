"""Checks of a listener with TLS: checks.py --key ECDSA|RSA --gateway HOST:PORT --plain HOST:PORT --path PATH [PATTERN]

The listener has a certificate for a key of that kind, which an intermediate authority has issued. The certificates of
the root, of that authority and of the server are in the current folder, where scripts/tls-tests creates them.

Each check is a function whose docstring says what must be true; it returns what is wrong, or nothing. With a key of RSA
only those that depend on the key are run. Clients are openssl, curl, and sockets for what no client sends.
"""

import argparse
import contextlib
import os
import re
import socket
import struct
import subprocess
import sys
import time

PATIENCE_SECONDS = 30
# What openssl itself does not refuse.
ANY = "ALL:eNULL:@SECLEVEL=0"
SUITES_13 = {"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"}
# Authenticated encryption with forward secrecy (RFC 9325, section 4.2), for each kind of key.
SUITES_12 = {
    key: {f"ECDHE-{key}-{cipher}" for cipher in ["AES256-GCM-SHA384", "AES128-GCM-SHA256", "CHACHA20-POLY1305"]}
    for key in ["ECDSA", "RSA"]
}
CHECKS = []


def check(of_key=False):
    """Declares a check; one `of_key` depends on the kind of the key."""

    def declare(function):
        CHECKS.append((function, of_key))
        return function

    return declare


class Gateway:
    """The listener under test."""

    def __init__(self, options):
        self.host, port = options.gateway.rsplit(":", 1)
        self.port, self.plain, self.path, self.key = int(port), options.plain, options.path, options.key

    def client(self, *arguments, send=b"", name="localhost"):
        """Connects with openssl, sends bytes, and returns all that it prints, and whether it has connected."""
        command = ["openssl", "s_client", "-connect", f"{self.host}:{self.port}", "-CAfile", "root.pem"]
        command += ["-servername", name] if name else ["-noservername"]
        done = subprocess.run(
            command + list(arguments),
            input=send,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return done.stdout.decode(errors="replace")

    def curl(self, *arguments, url=None):
        """What curl prints, and its exit code."""
        command = ["curl", "-sS", "--noproxy", "*", "--cacert", "root.pem", "--max-time", str(PATIENCE_SECONDS)]
        url = url or f"https://localhost:{self.port}{self.path}"
        connect = ["--connect-to", f"::{self.host}:{self.port}"] if url.startswith("https") else []
        done = subprocess.run(
            command + connect + list(arguments) + [url], capture_output=True, text=True, errors="replace", check=False
        )
        return done.stdout + done.stderr, done.returncode

    def socket(self):
        """A connection of bytes."""
        return socket.create_connection((self.host, self.port), timeout=PATIENCE_SECONDS)


def connected(output):
    """Whether a handshake is complete. In TLS 1.3 openssl names the cipher before that."""
    found = re.search(r"^(?:New|Reused), \S+, Cipher is (\S+)", output, re.MULTILINE)
    return bool(found) and found[1] != "(NONE)" and "SSL alert number" not in output


def refused(output, *alerts_allowed):
    """What is wrong with the refusal of a handshake, which must end with one of these alerts."""
    if connected(output):
        return "the handshake succeeds"
    if not any(f"alert {alert}:" in output for alert in alerts_allowed):
        errors = re.findall(r"error:\w+:[^\n]+", output)
        return f"the handshake must end with an alert of {alerts_allowed}, and ends with {errors or output[-200:]!r}"
    return None


def value(output, key):
    """The value of a line "key: value" of openssl."""
    found = re.search(rf"^\s*{re.escape(key)}\s*: ?(.*)$", output, re.MULTILINE)
    return found[1].strip() if found else None


# Records by hand.

HANDSHAKE, ALERT, CHANGE_CIPHER_SPEC, HEARTBEAT = 22, 21, 20, 24
TLS_10, TLS_12 = 0x0301, 0x0303
HEARTBEAT_EXTENSION = struct.pack(">HHB", 15, 1, 1)


def record(kind, payload, version=TLS_12):
    """A record of TLS."""
    return struct.pack(">BHH", kind, version, len(payload)) + payload


def client_hello(version=TLS_12, compressions=b"\0", further=b""):
    """A ClientHello of TLS 1.2 and below, whose suites fit both kinds of keys, in a record."""
    suites = struct.pack(">6H", 0xC02B, 0xC02F, 0xC02C, 0xC030, 0xC013, 0x002F)
    groups = struct.pack(">HHHHH", 10, 6, 4, 0x001D, 0x0017)
    points = struct.pack(">HHBB", 11, 2, 1, 0)
    signatures = struct.pack(">HHHHHH", 13, 8, 6, 0x0403, 0x0804, 0x0401)
    name = b"localhost"
    names = struct.pack(">HHHBH", 0, len(name) + 5, len(name) + 3, 0, len(name)) + name
    extensions = names + groups + points + signatures + further
    body = struct.pack(">H", version) + os.urandom(32) + b"\0"
    body += struct.pack(">H", len(suites)) + suites + bytes([len(compressions)]) + compressions
    body += struct.pack(">H", len(extensions)) + extensions
    return record(HANDSHAKE, b"\1" + struct.pack(">I", len(body))[1:] + body, TLS_10)


def records(connection):
    """The records that arrive until the end of the connection."""
    received = b""
    while True:
        while len(received) >= 5 and len(received) >= 5 + struct.unpack(">H", received[3:5])[0]:
            length = struct.unpack(">H", received[3:5])[0]
            yield received[0], received[5 : 5 + length]
            received = received[5 + length :]
        try:
            more = connection.recv(65536)
        except ConnectionResetError:
            return
        if not more:
            return
        received += more


def server_flight(connection):
    """The handshake messages of the server up to ServerHelloDone, by type; `None` if it refuses."""
    messages, pending = {}, b""
    for kind, payload in records(connection):
        if kind != HANDSHAKE:
            return None
        pending += payload
        while len(pending) >= 4 and len(pending) >= 4 + int.from_bytes(pending[1:4], "big"):
            length = int.from_bytes(pending[1:4], "big")
            messages[pending[0]] = pending[4 : 4 + length]
            pending = pending[4 + length :]
        if 14 in messages:
            return messages
    return None


def alerts(connection):
    """The descriptions of alerts until the end of the connection; other records are returned as they are."""
    return [payload[1] if kind == ALERT else (kind, payload[:16]) for kind, payload in records(connection)]


UNEXPECTED_MESSAGE, PROTOCOL_VERSION, NO_RENEGOTIATION = 10, 70, 100


# Versions.


@check()
def old_versions_are_refused(gateway):
    """TLS 1.0 and 1.1 are refused with an alert (RFC 8996)"""
    for version in ["-tls1", "-tls1_1"]:
        output = gateway.client(version, "-cipher", ANY)
        # A hello without signature algorithms, which these versions do not have, fails by itself.
        if wrong := refused(output, "protocol version", "handshake failure"):
            return f"{version}: {wrong}"
    # The same with all that TLS 1.2 has.
    for version in [0x0301, 0x0302]:
        with gateway.socket() as connection:
            connection.sendall(client_hello(version=version))
            if (found := alerts(connection)) != [PROTOCOL_VERSION]:
                return f"a hello of version {version:#x} is answered with {found}"
    return None


@check()
def versions_of_ssl_are_refused(gateway):
    """SSL 2 and SSL 3 are refused (RFC 6176, RFC 7568)"""
    with gateway.socket() as connection:
        connection.sendall(client_hello(version=0x0300))
        if (found := alerts(connection)) != [PROTOCOL_VERSION]:
            return f"a hello of SSL 3 is answered with {found}"
    # A hello of SSL 2: its length, its type, the version, the lengths of its parts, a cipher, a challenge.
    body = b"\1" + struct.pack(">HHHH", 2, 3, 0, 16) + b"\1\0\x80" + os.urandom(16)
    with gateway.socket() as connection:
        connection.sendall(struct.pack(">H", 0x8000 | len(body)) + body)
        if [found for found in alerts(connection) if isinstance(found, tuple)]:
            return "a hello of SSL 2 is answered"
    return None


@check(of_key=True)
def current_versions_are_accepted(gateway):
    """TLS 1.2 and 1.3 are accepted, and 1.3 is preferred"""
    for arguments, expected in [(["-tls1_2"], "TLSv1.2"), (["-tls1_3"], "TLSv1.3"), ([], "TLSv1.3")]:
        output = gateway.client(*arguments)
        if not re.search(rf"^New, {re.escape(expected)}, ", output, re.MULTILINE):
            return f"openssl s_client {' '.join(arguments)}: {output[-300:]}"
    return None


@check()
def a_downgrade_is_visible(gateway):
    """A ServerHello of TLS 1.2 tells that the server speaks 1.3 (RFC 8446, section 4.1.3)"""
    with gateway.socket() as connection:
        connection.sendall(client_hello())
        flight = server_flight(connection)
    end = flight[2][26:34] if flight else b""
    return None if end == b"DOWNGRD\x01" else f"the random value ends with {end!r}"


# Cipher suites, groups, signatures.


def all_suites():
    """All suites of TLS 1.2 and below that openssl has."""
    listed = subprocess.run(["openssl", "ciphers", "-s", "-tls1_2", ANY], capture_output=True, text=True, check=True)
    return listed.stdout.strip().split(":")


@check(of_key=True)
def suites_have_forward_secrecy_and_authenticated_encryption(gateway):
    """TLS 1.2 has only ECDHE with AES-GCM or ChaCha20-Poly1305: no CBC, RC4, NULL, anonymous, static or DHE suite"""
    suites = all_suites()
    if not {"AES128-SHA", "ECDHE-RSA-AES128-SHA", "NULL-SHA256", "ADH-AES128-SHA"} <= set(suites):
        return f"this openssl has too few weak suites for the check: {suites}"
    accepted = {suite for suite in suites if connected(gateway.client("-tls1_2", "-cipher", f"{suite}:@SECLEVEL=0"))}
    expected = SUITES_12[gateway.key]
    return None if accepted == expected else f"refused: {expected - accepted}, accepted: {accepted - expected}"


@check()
def a_handshake_without_a_common_suite_is_refused(gateway):
    """A client without a common suite gets the alert handshake_failure"""
    return refused(gateway.client("-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0"), "handshake failure")


@check()
def suites_of_tls_13(gateway):
    """TLS 1.3 has AES-GCM and ChaCha20-Poly1305, and not CCM"""
    known = SUITES_13 | {"TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"}
    accepted = {suite for suite in known if connected(gateway.client("-tls1_3", "-ciphersuites", suite))}
    return None if accepted == SUITES_13 else f"accepted: {accepted}"


@check()
def clients_choose_the_suite(gateway):
    """Clients get the first suite of their own lists in both versions: they know their hardware"""
    for version, option, suites in [
        ("-tls1_2", "-cipher", sorted(SUITES_12["ECDSA"])),
        ("-tls1_3", "-ciphersuites", sorted(SUITES_13)),
    ]:
        for first in suites:
            offer = ":".join([first] + [suite for suite in suites if suite != first])
            output = gateway.client(version, option, offer)
            if f"Cipher is {first}\n" not in output:
                return f"{version} {offer}: {re.findall('Cipher is .*', output)}"
    return None


@check(of_key=True)
def groups_of_the_key_exchange(gateway):
    """Keys are exchanged on X25519, P-256 and P-384, and not on other curves or in finite fields"""
    known = {
        "-tls1_3": ["X25519", "P-256", "P-384", "P-521", "X448", "ffdhe2048", "ffdhe3072"],
        # Finite fields are chosen by the suite.
        "-tls1_2": ["X25519", "P-256", "P-384", "P-521", "X448"],
    }
    for version, groups in known.items():
        # In TLS 1.2 the groups of a client also say which certificates it takes, so that a key of RSA tells more.
        if version == "-tls1_2" and gateway.key == "ECDSA":
            continue
        accepted = [group for group in groups if connected(gateway.client(version, "-groups", group))]
        if accepted != ["X25519", "P-256", "P-384"]:
            return f"{version}: {accepted} are accepted"
    # A client whose first key share has no common group is asked for another one.
    output = gateway.client("-tls1_3", "-groups", "X448:P-384")
    return None if connected(output) else f"no second key share after X448: {output[-300:]}"


@check(of_key=True)
def weak_signatures_are_not_made(gateway):
    """Handshakes are signed with SHA-256 or better, never with SHA-1"""
    strong = {"ECDSA": "ECDSA+SHA256", "RSA": "RSA-PSS+SHA256"}[gateway.key]
    if not connected(gateway.client("-tls1_2", "-sigalgs", strong)):
        return f"{strong} is refused"
    weak = {"ECDSA": "ECDSA+SHA1", "RSA": "RSA+SHA1"}[gateway.key]
    return refused(gateway.client("-tls1_2", "-sigalgs", weak, "-cipher", ANY), "handshake failure")


# Certificates and names.


@check(of_key=True)
def the_chain_is_sent(gateway):
    """The chain is sent in its order and without the root, and clients that trust the root verify it"""
    for version in ["-tls1_2", "-tls1_3"]:
        output = gateway.client(version, "-showcerts", "-verify_return_error", "-verify_hostname", "localhost")
        chain = re.findall(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n", output, re.DOTALL)
        expected = []
        for file in ["server.pem", "intermediate.pem"]:
            with open(file, encoding="ascii") as pem:
                expected.append(pem.read())
        if chain != expected:
            return f"{version}: {len(chain)} certificates, in the wrong order or others"
        if "Verify return code: 0 (ok)" not in output:
            return f"{version}: {value(output, 'Verify return code')}"
    return None


@check()
def every_name_gets_the_certificate(gateway):
    """With a certificate from files, every name of SNI gets it, and so does no name"""
    names = ["localhost", "LOCALHOST", "gateway.example.org", "bafkqac3imvwgy3zao5xxe3de.ipfs.localhost", None]
    for name in [*names, "unknown.example.net"]:
        output = gateway.client("-tls1_3", name=name)
        if not connected(output) or "CN = localhost" not in output:
            return f"{name}: {output[-300:]}"
    output, code = gateway.curl(url=f"https://unknown.example.net:{gateway.port}/healthz")
    return None if code == 60 else f"a client trusts it for a name that it does not have: {code} {output}"


@check()
def no_certificate_is_requested(gateway):
    """Clients are not asked for certificates"""
    output = gateway.client("-tls1_3")
    return None if "No client certificate CA names sent" in output else output[-300:]


@check()
def a_request_for_ocsp_does_no_harm(gateway):
    """A client that asks for a stapled OCSP response is served without one"""
    output = gateway.client("-status")
    return None if connected(output) and "OCSP response: no response sent" in output else output[-300:]


# The application.


@check()
def protocols_of_the_application(gateway):
    """ALPN: h2, then http/1.1, whatever the client prefers; others are refused with an alert (RFC 7301)"""
    for version in ["-tls1_2", "-tls1_3"]:
        offers = [("h2", "h2"), ("http/1.1", "http/1.1"), ("http/1.1,h2", "h2"), ("spdy/3,http/1.1", "http/1.1")]
        for offer, expected in offers:
            found = value(gateway.client(version, "-alpn", offer), "ALPN protocol")
            if found != expected:
                return f"{version}: {offer} gives {found}"
        if "No ALPN negotiated" not in gateway.client(version):
            return f"{version}: a client without ALPN gets one"
        for offer in ["http/1.0", "spdy/3", "h2c", "h3", "acme-tls/1", "H2"]:
            if wrong := refused(gateway.client(version, "-alpn", offer), "no application protocol"):
                return f"{version}: {offer}: {wrong}"
    return None


@check(of_key=True)
def curl_is_answered(gateway):
    """curl is answered over HTTP/2 and HTTP/1.1, in both versions of TLS"""
    with open("file.bin", "rb") as file:
        size = len(file.read())
    for http, expected in [("--http2", "2"), ("--http1.1", "1.1")]:
        for tls in [["--tls-max", "1.2"], ["--tlsv1.3"]]:
            write = "%{http_version} %{http_code} %{size_download} %{ssl_verify_result}"
            url = f"https://localhost:{gateway.port}{gateway.path}"
            # The content has an origin of its own.
            output, _ = gateway.curl(http, *tls, "-L", "-o", "received.bin", "-w", write, url=url)
            if output != f"{expected} 200 {size} 0":
                return f"{http} {tls}: {output}"
            with open("received.bin", "rb") as received, open("file.bin", "rb") as file:
                if received.read() != file.read():
                    return f"{http} {tls}: other content"
    return None


@check()
def headers_about_transport(gateway):
    """As documented: no Strict-Transport-Security, no redirect of http://, no upgrade to HTTP/2 without TLS"""
    output, _ = gateway.curl("-L", "-D", "-", "-o", os.devnull)
    if "200" not in output or "strict-transport-security" in output.lower():
        return output
    write = "%{http_version} %{http_code}"
    output, _ = gateway.curl("--http2", "-o", os.devnull, "-w", write, url=f"http://{gateway.plain}{gateway.path}")
    if output != "1.1 200":
        return f"http:// with an upgrade to h2c: {output}"
    output, code = gateway.curl("--http2-prior-knowledge", url=f"http://{gateway.plain}/healthz")
    return None if code != 0 else f"HTTP/2 without TLS: {output}"


@check()
def plain_requests_get_no_answer(gateway):
    """A request without TLS on the port of TLS is not answered"""
    with gateway.socket() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = b"".join(iter(lambda: connection.recv(4096), b""))
    return None if b"HTTP" not in found else f"it is answered: {found!r}"


# Sessions.


REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@check()
def sessions_are_resumed(gateway):
    """Sessions are resumed with tickets in both versions, in TLS 1.3 with a new key exchange"""
    for version in ["-tls1_2", "-tls1_3"]:
        first = gateway.client(version, "-ign_eof", "-sess_out", "session", send=REQUEST)
        if not re.search("^New, ", first, re.MULTILINE) or "200 OK" not in first:
            return f"{version}: {first[-300:]}"
        second = gateway.client(version, "-ign_eof", "-sess_in", "session", send=REQUEST)
        if not re.search("^Reused, ", second, re.MULTILINE) or "200 OK" not in second:
            return f"{version}: the session is not resumed: {second[-300:]}"
        if version == "-tls1_3" and "X25519" not in (value(second, "Server Temp Key") or ""):
            return "a resumed session has no key exchange of its own"
    return None


@check()
def two_tickets_are_sent(gateway):
    """A handshake of TLS 1.3 sends two tickets, so that a client can resume two connections"""
    output = gateway.client("-tls1_3", "-ign_eof", send=REQUEST)
    count = output.count("Post-Handshake New Session Ticket arrived")
    return None if count == 2 else f"{count} tickets"


@check()
def early_data_is_refused(gateway):
    """There is no early data (0-RTT), which could be replayed"""
    output = gateway.client("-tls1_3", "-ign_eof", "-sess_out", "session", send=REQUEST)
    limits = set(re.findall(r"Max Early Data: (\d+)", output))
    if limits != {"0"}:
        return f"tickets allow early data: {limits}"
    with open("early", "wb") as file:
        file.write(REQUEST)
    output = gateway.client("-tls1_3", "-sess_in", "session", "-early_data", "early")
    return "early data was accepted" if "Early data was accepted" in output else None


@check()
def there_is_no_renegotiation(gateway):
    """A client of TLS 1.2 cannot renegotiate (CVE-2011-1473), and RFC 5746 is supported"""
    # openssl renegotiates at a line with an R, and waits for the end of its input.
    output = gateway.client("-tls1_2", send=b"R\n" + REQUEST)
    if "Secure Renegotiation IS supported" not in output:
        return "RFC 5746 is not supported"
    if "RENEGOTIATING" not in output or "no renegotiation" not in output:
        return f"the client must get the alert no_renegotiation: {output[-300:]}"
    return None


@check()
def master_secrets_are_bound_to_the_handshake(gateway):
    """TLS 1.2 has the extended master secret (RFC 7627)"""
    found = value(gateway.client("-tls1_2"), "Extended master secret")
    return None if found == "yes" else f"Extended master secret: {found}"


# Known attacks, besides those that need a version or a suite above.


@check()
def there_is_no_compression(gateway):
    """No compression (CRIME), also for a client that offers DEFLATE"""
    for version in ["-tls1_2", "-tls1_3"]:
        if value(gateway.client(version), "Compression") != "NONE":
            return f"{version} compresses"
    with gateway.socket() as connection:
        connection.sendall(client_hello(compressions=b"\1\0"))
        flight = server_flight(connection)
    if flight is None:
        return None
    hello = flight[2]
    method = hello[35 + hello[34] + 2]
    return None if method == 0 else f"the server chooses the compression {method}"


@check()
def there_is_no_heartbeat(gateway):
    """Heartbeats (Heartbleed) are neither negotiated nor answered"""
    with gateway.socket() as connection:
        connection.sendall(client_hello(further=HEARTBEAT_EXTENSION))
        flight = server_flight(connection)
        if flight is None:
            return "a client that offers heartbeats is refused"
        hello = flight[2]
        extensions = hello[38 + hello[34] + 2 :]
        while extensions:
            kind, length = struct.unpack(">HH", extensions[:4])
            if kind == 15:
                return "the extension is accepted"
            extensions = extensions[4 + length :]
        # A request of 16 KiB with a payload of 1 byte.
        connection.sendall(record(HEARTBEAT, b"\1\x40\0\0"))
        found = alerts(connection)
    wrong = [one for one in found if isinstance(one, tuple)]
    return f"it is answered with {wrong}" if wrong else None


@check()
def an_early_change_of_ciphers_is_refused(gateway):
    """ChangeCipherSpec before the keys are exchanged (CVE-2014-0224) ends the handshake"""
    with gateway.socket() as connection:
        connection.sendall(client_hello())
        if server_flight(connection) is None:
            return "the client is refused"
        connection.sendall(record(CHANGE_CIPHER_SPEC, b"\1"))
        # Whether it is refused shows when what should be encrypted follows.
        connection.sendall(record(HANDSHAKE, b"\x14\0\0\x0c" + bytes(12)))
        found = alerts(connection)
    return None if found == [UNEXPECTED_MESSAGE] else f"it is answered with {found}"


@check()
def malformed_records_end_the_handshake(gateway):
    """Records that are too long, empty or of no known type end the handshake, and only that"""
    table = [
        ("a record of 20 KiB", record(HANDSHAKE, bytes(20 << 10))),
        ("an unknown type", record(99, b"x")),
        ("application data first", record(23, b"GET / HTTP/1.1\r\n\r\n")),
        ("a hello of 1 MiB", record(HANDSHAKE, b"\1\x10\0\0" + bytes(1000))),
        ("nonsense", os.urandom(600)),
        ("a hello that is cut off", client_hello()[:-20]),
    ]
    for name, sent in table:
        with gateway.socket() as connection:
            # The server may have ended the connection before all is sent.
            with contextlib.suppress(OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
            if wrong := [found for found in alerts(connection) if isinstance(found, tuple)]:
                return f"{name} is answered with {wrong}"
    return None if connected(gateway.client()) else "the listener does not answer any more"


def until_the_key_is_used(gateway):
    """Waits until the listener uses the certificate in the files."""
    with open("server.pem", encoding="ascii") as pem:
        expected = pem.read()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while expected not in gateway.client("-showcerts"):
        if time.monotonic() > deadline:
            sys.exit("the listener does not use the certificate in the files")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--key", choices=["ECDSA", "RSA"], required=True)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--plain", required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("pattern", nargs="?", default="")
    options = parser.parse_args()
    gateway = Gateway(options)
    until_the_key_is_used(gateway)
    wanted = [
        function
        for function, of_key in CHECKS
        if (of_key or options.key == "ECDSA") and re.search(options.pattern, function.__name__)
    ]
    failures = 0
    for function in wanted:
        try:
            wrong = function(gateway)
        except (OSError, subprocess.SubprocessError) as error:
            wrong = f"the check cannot be made: {error!r}"
        failures += wrong is not None
        print(f"{'FAILED' if wrong else 'ok':6} {options.key:5} {function.__doc__}")
        if wrong:
            print(f"       {function.__name__}: {wrong}")
    print(f"TLS with a key of {options.key}: {len(wanted) - failures} of {len(wanted)} checks passed")
    sys.exit(1 if failures or not wanted and options.key == "ECDSA" else 0)


if __name__ == "__main__":
    main()
