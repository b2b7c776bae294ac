"""JSON Web Tokens: by PyJWT and by us, and what nobody may get through with."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from hashlib import sha256
from hmac import digest
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from gateway.errors import OutOfTolerance, SignatureMissing, Unverified
from gateway.sources.base import Draft, Signed, Source, Verified
from gateway.sources.proofs import MAX_TOKEN
from tests.unit.sources.examples import NOW
from tests.unit.sources.sending import URL, own, received, unverified

SECRET = "a secret of more than sixty-four bytes, which is what HS512 wants to be safe."
BODY = b'{"type":"order.paid"}'
CLAIMS = {"iat": NOW, "exp": NOW + 60, "iss": "partner", "hash": sha256(BODY).hexdigest()}
PRIVATE: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
PRIVATE |= dict.fromkeys(["RS384", "RS512", "PS256", "PS384", "PS512"], PRIVATE["RS256"])


def pem(key: Any, private: bool = False) -> str:
    if private:
        how = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return key.private_bytes(serialization.Encoding.PEM, *how).decode()
    how = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, how).decode()


def source(secret: str, **more: Any) -> Source:
    block = {
        "signature": "header:authorization", "prefix": "Bearer ", "algorithm": "jwt",
        "require": {"claim:/iss": "partner", "claim:/hash": "{body|sha256hex}"},
        "identity": "claim:/jti", "event": "json:/type", **more,
    }  # fmt: skip
    return own(secrets=secret, **block)


def verify(found: Source, token: str, now: float = NOW) -> Verified:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return found.verify(replace(received(Signed(BODY, headers)), received_at=now))


def refused(found: Source, token: str, error: type[Unverified] = Unverified) -> None:
    """See that `found` refuses the token."""
    with pytest.raises(error):
        verify(found, token)


def encode(header: Any, claims: Any, signature: str = "") -> str:
    parts = [urlsafe_b64encode(json.dumps(part).encode()) for part in (header, claims)]
    return ".".join([*(part.rstrip(b"=").decode() for part in parts), signature])


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512", *PRIVATE])
def test_we_verify_what_the_library_signs_and_the_other_way_round(algorithm):
    key = PRIVATE.get(algorithm)
    secret, private = (SECRET, SECRET) if key is None else (pem(key), pem(key, private=True))
    token = jwt.encode({**CLAIMS, "jti": "7"}, private, algorithm, {"kid": "1"})

    assert verify(source(secret), token) == Verified(BODY, '["7", "order.paid"]', "order.paid")
    for bad in (token[:-9] + "AAAAAAAAA", token.replace(".", ".e", 1), token + "x", token + "="):
        refused(source(secret), bad)

    signed = source(private).sign(Draft(BODY, URL, NOW))
    ours = signed.headers["authorization"].removeprefix("Bearer ")
    options: Any = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
    known = ["HS256", *PRIVATE]
    assert jwt.decode(ours, secret, known, options)["hash"] == CLAIMS["hash"]
    assert verify(source(secret), ours).body == BODY


def test_no_token_chooses_what_verifies_it():
    """Not `none`, not HMAC with a public key, no key in its header, no key of another kind."""
    public = pem(PRIVATE["RS256"])
    signing = {"RS256": PRIVATE["RS256"], "ES256": PRIVATE["ES256"], "EdDSA": PRIVATE["EdDSA"]}
    of_rsa, shared = source(public), source(SECRET)
    for name in ("none", "None", "NONE", "", "hs256"):
        for token in (encode({"alg": name}, CLAIMS), encode({"alg": name}, CLAIMS, "AAAA")):
            for found in (of_rsa, shared):
                refused(found, token)
    for text in (public, public.strip(), public.replace("\n", "")):
        refused(of_rsa, jwt_of(CLAIMS, text))
    for name, key in signing.items():
        for other in signing.keys() - {name}:
            refused(source(pem(key)), jwt.encode(CLAIMS, signing[other], other))
    another = ec.generate_private_key(ec.SECP256R1())
    jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(another.public_key()))
    for header in ({"jwk": jwk}, {"jku": "https://evil.example/keys"}, {"x5u": "https://evil/"}):
        refused(source(pem(PRIVATE["ES256"])), jwt.encode(CLAIMS, another, "ES256", header))


@pytest.mark.parametrize("secret", ["-----BEGIN PUBLIC KEY-----MFk-----END PUBLIC KEY-----", ""])
def test_a_public_key_that_is_none_is_no_shared_secret(secret):
    with pytest.raises(ValueError):
        source(secret)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"exp": NOW - 301}, OutOfTolerance),
        ({"nbf": NOW + 301}, OutOfTolerance),
        ({"iat": NOW + 301}, OutOfTolerance),
        ({"exp": None, "iat": None}, Unverified),  # it would be valid for ever
        ({"exp": None, "iat": None, "nbf": NOW}, Unverified),
        ({"exp": "soon"}, Unverified),
        ({"exp": True}, Unverified),
        ({"exp": 10**400}, Unverified),
        ({"exp": -1}, Unverified),
        ({"iss": "another"}, Unverified),
        ({"iss": None}, Unverified),
        ({"iss": ["another"]}, Unverified),
        ({"hash": sha256(b"").hexdigest()}, Unverified),
        ({"hash": None}, Unverified),
    ],
)
def test_each_claim_counts(changed, error):
    refused(source(SECRET), jwt_of({**CLAIMS, **changed}), error)


def test_times_are_not_checked_without_a_tolerance():
    token = jwt.encode({**CLAIMS, "exp": 1, "nbf": 2**40, "iat": "x"}, SECRET, "HS256")
    assert verify(source(SECRET, tolerance=0), token)


@pytest.mark.parametrize("good", [NOW + 60 + 300, NOW - 300])
def test_times_are_good_within_the_tolerance(good):
    assert verify(source(SECRET), jwt.encode(CLAIMS, SECRET, "HS256"), now=good)


def test_one_of_several_audiences_is_enough():
    found = source(SECRET, require={"claim:/aud": "me"})
    for audience in ("me", ["you", "me"]):
        assert verify(found, jwt.encode({"aud": audience, "exp": NOW}, SECRET, "HS256"))
    for audience in ("you", ["you"], [], [["me"]], {"me": 1}, 1, None):
        refused(found, jwt_of({"aud": audience, "exp": NOW}))


def jwt_of(claims: Any, key: str = SECRET) -> str:
    signed = encode({"alg": "HS256"}, claims).rstrip(".")
    mac = digest(key.encode(), signed.encode(), "sha256")
    return f"{signed}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def test_the_body_may_be_the_token():
    found = source(SECRET, signature="body", prefix="", require={}, event="claim:/type")
    token = jwt.encode({"type": "a", "jti": "9", "iat": NOW}, SECRET, "HS256")
    assert found.covers_body
    taken = found.verify(received(Signed(token.encode())))
    assert (json.loads(taken.body), taken.event) == ({"type": "a", "jti": "9", "iat": NOW}, "a")
    assert found.verify(received(found.sign(Draft(b'{"type":"b"}', URL, NOW)))).event == "b"
    for bad in (token[:-4] + "AAAA", token + " ", "", "{}"):
        unverified(found, received(Signed(bad.encode())))


@pytest.mark.parametrize(
    "token",
    [
        *("a", "a.b", "a.b.c", "a.b.c.d", "..", "e30.e30.e30", "\xe9.\xe9.\xe9"),
        "x" * (MAX_TOKEN + 1),
        encode([], {}, "AAAA"),
        encode({"alg": 1}, {}, "AAAA"),
        encode({"alg": "HS256", "kid": 1}, {}, "AAAA"),
        encode({"alg": "\ud800"}, {}, "AAAA"),
        encode({"alg": "HS256", "crit": ["b64"]}, CLAIMS, "AAAA"),
        *(jwt_of(claims) for claims in ([], "x", 1, None)),
    ],
)
def test_what_is_no_token_is_unverified(token):
    refused(source(SECRET), token)


def test_a_missing_token_is_missing():
    refused(source(SECRET), "", SignatureMissing)
    with pytest.raises(SignatureMissing):
        source(SECRET).verify(received(Signed(BODY, {"Authorization": f"Basic {jwt_of(CLAIMS)}"})))
