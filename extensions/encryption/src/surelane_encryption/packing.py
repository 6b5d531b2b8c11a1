"""Pack texts before they are encrypted: most are payloads of Slack's, which consist of names that are known.

A packed text begins with a byte that says how it was packed. Nothing here may change what that byte means: what is
stored must open. Another dictionary needs another byte.
"""

import threading
import zlib

from zstandard import DICT_TYPE_RAWCONTENT, ZstdCompressionDict, ZstdCompressor, ZstdDecompressor, ZstdError

PLAIN, DEFLATED, NAMED = b"\x00", b"\x01", b"\x02"
"""The text itself; compressed by zlib, which is read only; compressed by zstd with the dictionary of Slack's names."""
_SMALL = 400
"""Bytes below which a text is not compressed. Larger ones cost the database more than compressing them."""
_SHORT = 1500
"""Bytes below which a payload of Slack's is mostly names. It is then compressed at half the cost."""

# What is most frequent is at the end. Slack writes without spaces, and Python with them.
_NAMES = (
    b'"actions":[{"action_id":"surelane.","block_id":"","value":"","type":"button","action_ts":"17"}]'
    b'"state":{"values":{}},"container":{"type":"message","message_ts":"17","is_ephemeral":false},'
    b'"callback_id":"","response_url":"https:\\/\\/hooks.slack.com\\/actions\\/T0","trigger_id":"'
    b'"files":[{"id":"F0","mimetype":"text\\/plain","url_private":"https:\\/\\/files.slack.com\\/files-pri\\/T0'
    b'"edited":{"user":"U0","ts":"17"},"reaction":"item":{"subtype":"bot_message","bot_id":"B0",'
    b'"app_id":"A0","files":[],"parent_user_id":"U0","thread_ts":"17'
    b'{"token":"","team_id":"T0","context_team_id":"T0","context_enterprise_id":null,"api_app_id":"A0",'
    b'"event":{"type":"message","user":"U0","type":"app_mention","user":"U0","ts":"17","client_msg_id":"",'
    b'"text":"<@U0","team":"T0","thread_ts":"17","parent_user_id":"U0","blocks":[{"type":"rich_text",'
    b'"block_id":"","elements":[{"type":"rich_text_section","elements":[{"type":"user","user_id":"U0"},'
    b'{"type":"text","text":" "}]}]}],"channel":"C0","event_ts":"17","channel_type":"channel"},'
    b'"type":"event_callback","event_id":"Ev0","event_time":17,"authorizations":[{"enterprise_id":null,'
    b'"team_id":"T0","user_id":"U0","is_bot":true,"is_enterprise_install":false}],'
    b'"is_ext_shared_channel":false,"event_context":"4-eyJldCI6ImFwcF9tZW50aW9uIiwidGlkIjoiVD"}'
)
_SPACED = _NAMES.replace(b'":', b'": ').replace(b',"', b', "').replace(b"},{", b"}, {") + _NAMES


def _names(level: int | None = None) -> ZstdCompressionDict:
    names = ZstdCompressionDict(_SPACED, dict_type=DICT_TYPE_RAWCONTENT)
    if level is not None:
        names.precompute_compress(level)
    return names


class _Zstd(threading.local):
    """What a thread packs and unpacks with: a compressor for small results, a quick one, and a decompressor.

    Making one costs more than using it. They have no locks, so each thread has its own, also after a fork.
    """

    def __init__(self) -> None:
        self.close = ZstdCompressor(1, dict_data=_names(1))
        self.quick = ZstdCompressor(-2, dict_data=_names(-2))
        self.reader = ZstdDecompressor(dict_data=_names())


_zstd = _Zstd()


def pack(text: str, *, payload: bool = False) -> bytes:
    """Return a text in few bytes, at a low cost. ``payload``: it is an event's payload, so probably one of Slack's."""
    plain = text.encode()
    if len(plain) < _SMALL:
        return PLAIN + plain
    compressor = _zstd.quick if payload and len(plain) < _SHORT else _zstd.close
    return NAMED + compressor.compress(plain)


def unpack(packed: bytes) -> str:
    """Return the text that was packed. ``ValueError``: it was packed in no way that is known here."""
    how, rest = packed[:1], packed[1:]
    if how == NAMED:
        try:
            rest = _zstd.reader.decompress(rest)
        except ZstdError as error:
            raise ValueError("it is no text that was packed") from error
    elif how == DEFLATED:
        rest = zlib.decompress(rest)
    elif how != PLAIN:
        raise ValueError("it is packed in an unknown way")
    return rest.decode()
