"""The encryption against WeChat's own vectors and wechatpy, and what it refuses."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from wechatpy.crypto import WeChatCrypto
from wechatpy.enterprise.crypto import WeChatCrypto as WeComCrypto
from wechatpy.utils import WeChatSigner

from gateway.sources.wechat_crypto import CryptoOptions, Opened, decrypt, encrypt, seal, signature
from tests.unit.sources.messages import VECTORS, aes_keys, texts, tokens

KEY = bytes(range(32))
OPTIONS = {"scheme": "wechat", "secrets": "t"}


def sealed(plain: bytes, key: bytes = KEY) -> str:
    """Encrypt what has its length, its receive id and its padding already, if it has."""
    encryptor = Cipher(AES(key), CBC(key[:16])).encryptor()
    return b64encode(encryptor.update(plain) + encryptor.finalize()).decode()


def test_the_published_reply_is_encrypted():
    vector = VECTORS["wechat-secure-reply"]
    key = b64decode(vector["aes_key"] + "=")

    text = encrypt(vector["msg"].encode(), vector["appid"], key, vector["random"].encode())

    assert text == vector["encrypt"]
    parts = (vector["token"], vector["timestamp"], vector["nonce"], text)
    assert signature(*parts) == vector["msg_signature"]


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_signatures_are_wechatpys(parts):
    signer = WeChatSigner()
    signer.add_data(*parts)
    assert signature(*parts) == signer.signature


either = pytest.mark.parametrize("library", [WeChatCrypto, WeComCrypto])


@either
@given(texts, texts, tokens, aes_keys, st.integers(0, 2**33))
@example("", "", "t", "A" * 43, 0)
def test_wechatpy_decrypts_what_we_encrypt(library, message, receive_id, token, aes_key, now):
    key = b64decode(aes_key + "=")
    ours = seal(Opened(message.encode(), receive_id, token, key), str(now))

    crypto = library(token, aes_key, receive_id)
    found = crypto.decrypt_message(
        {"Encrypt": ours.encrypted}, ours.signature, ours.timestamp, ours.nonce
    )

    assert found == message


@either
@given(texts, texts, tokens, aes_keys, tokens)
@example("", "", "t", "A" * 43, "n")
def test_we_decrypt_what_wechatpy_encrypts(library, message, receive_id, token, aes_key, nonce):
    crypto = library(token, aes_key, receive_id)
    text = crypto.encrypt_message(message, nonce, "1800000000")

    encrypted = text.split("<Encrypt><![CDATA[")[1].split("]]>")[0]

    assert decrypt(encrypted, b64decode(aes_key + "=")) == (message.encode(), receive_id)
    assert signature(token, "1800000000", nonce, encrypted) in text


def framed(padding: int, byte: int = 0, more: int = 0, receive_id: bytes = b"wx") -> bytes:
    """Return whole blocks of plain text, whose length says `more` than the message has."""
    size = -(20 + len(receive_id) + padding) % 16
    ending = receive_id + bytes([byte or padding]) * padding
    return bytes(16) + (size + more).to_bytes(4, "big") + b"m" * size + ending


@pytest.mark.parametrize("padding", range(1, 33))
def test_padding_has_1_to_32_bytes(padding):
    message, receive_id = decrypt(sealed(framed(padding)), KEY)
    assert (message.strip(b"m"), receive_id) == (b"", "wx")


ODD_PLAIN_TEXTS = {
    "nothing": b"",
    "no padding": framed(8)[:-8] + bytes(8),
    "33 bytes of padding": framed(33),
    "255 bytes of padding": framed(255),
    "padding that differs": framed(8)[:-2] + b"\x07\x08",
    "more padding than text": b"\x20" * 16,
    "only padding": b"\x20" * 32,
    "half a length": bytes(16) + b"\0\0" + b"\x0e" * 14,
    "a length beyond the end": framed(8, more=3),
    "a length of 4 GB": framed(8, more=2**32 - 64),
    "a receive id that is no text": framed(8, receive_id=b"\xff\xfe"),
}


@pytest.mark.parametrize("plain", ODD_PLAIN_TEXTS.values(), ids=ODD_PLAIN_TEXTS)
def test_odd_plain_text_is_none(plain):
    assert decrypt(sealed(plain), KEY) is None


@pytest.mark.parametrize(
    "text", ["", "=", "A", "AAAA", "A" * 63, "ü" * 64, "A" * 60 + "\n" + "A" * 4, "-_" * 32, "*"]
)
def test_odd_cipher_text_is_none(text):
    assert decrypt(text, KEY) is None


def test_no_other_text_is_the_same_cipher_text():
    text = encrypt(b"hallo", "wx", KEY)
    for other in (text + "\n", " " + text, text[:8] + "!" + text[8:], text + "=", text + "AAAA"):
        assert decrypt(other, KEY) is None


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b64encode(b).decode()))
def test_whatever_comes_is_decrypted_or_is_none(text):
    found = decrypt(text, KEY)
    assert found is None or (type(found[0]) is bytes and type(found[1]) is str)


@given(st.binary(max_size=100), st.data())
def test_a_changed_cipher_text_never_says_more_than_it_has(message, data):
    whole = bytearray(b64decode(encrypt(message, "wx", KEY)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    found = decrypt(b64encode(bytes(whole)).decode(), KEY)
    assert found is None or len(found[0]) + len(found[1]) < len(whole)


@pytest.mark.parametrize("key", ["", "A" * 42, "A" * 44, "A" * 42 + "=", "A" * 42 + "-", "ü" * 43])
def test_an_aes_key_has_43_characters(key):
    with pytest.raises(ValidationError, match="43 characters") as error:
        CryptoOptions(**OPTIONS, aes_key=["B" * 43, key], receive_id="wx")
    assert not key or key not in str(error.value)


def test_an_aes_key_needs_a_receive_id_beside_it():
    with pytest.raises(ValidationError, match="receive_id"):
        CryptoOptions(**OPTIONS, aes_key="A" * 43)
    options = CryptoOptions(**OPTIONS, aes_key="A" * 43, receive_id="")
    assert options.receive_id == [""]


def test_keys_and_tokens_do_not_show():
    options = CryptoOptions(**OPTIONS, aes_key="SeCrEt" * 7 + "x", receive_id="wx")
    opened = Opened(b"m3ss4ge", "wx", "t0k3n", b"k3y")
    shown = f"{options!r}{options.model_dump()}{opened!r}{opened}"
    assert not any(word in shown for word in ("SeCrEt", "m3ss4ge", "t0k3n", "k3y"))
