"""Certificates and keys for a trial: one authority, one server, one key per device. For production, bring your own."""

from __future__ import annotations

import datetime
import ipaddress
from typing import Any, NamedTuple

from anybit.export.extras import need

VALID = datetime.timedelta(days=365)


class ServerCertificate(NamedTuple):
    """PEM files. The authority's key signs once and is not kept, so that nobody can sign a second server with it."""

    authority: bytes
    certificate: bytes
    key: bytes


class DeviceKey(NamedTuple):
    """An ECDSA pair in OpenSSH's format, as `ssh-keygen -t ecdsa -b 384` makes it."""

    private: bytes
    public: bytes


def _crypto(module: str) -> Any:
    return need(f"cryptography.{module}", "flower", "a trial certificate")


def server_certificate(host: str) -> ServerCertificate:
    """Make a server certificate for `host` and this machine, signed by a new authority."""
    x509, hashes, ec = _crypto("x509"), _crypto("hazmat.primitives.hashes"), _crypto("hazmat.primitives.asymmetric.ec")
    usage, pem = x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, _crypto("hazmat.primitives.serialization")
    authority_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "anybit trial authority")])
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host[:64])])
    signing = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    authority = (_builder(x509, authority_name, authority_name, authority_key.public_key())
                 .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                 .add_extension(signing, critical=True)
                 .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
                 .sign(authority_key, hashes.SHA256()))
    try:
        address = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        address = x509.DNSName(host)
    # This machine, too: the ServerApp reaches its SuperLink from inside.
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")), address]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (_builder(x509, name, authority_name, key.public_key())
                   .add_extension(x509.SubjectAlternativeName(dict.fromkeys(names)), critical=False)
                   .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
                   .add_extension(issuer, critical=False)
                   .sign(authority_key, hashes.SHA256()))
    return ServerCertificate(authority.public_bytes(pem.Encoding.PEM), certificate.public_bytes(pem.Encoding.PEM),
                             key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()))


def _builder(x509: Any, subject: Any, issuer: Any, key: Any) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
            .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + VALID))


def device_key() -> DeviceKey:
    """Make the key pair that authenticates one device."""
    ec, pem = _crypto("hazmat.primitives.asymmetric.ec"), _crypto("hazmat.primitives.serialization")
    key = ec.generate_private_key(ec.SECP384R1())
    return DeviceKey(key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.OpenSSH, pem.NoEncryption()),
                     key.public_key().public_bytes(pem.Encoding.OpenSSH, pem.PublicFormat.OpenSSH) + b"\n")
