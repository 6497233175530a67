"""The messages of the model's other parts: each that is exported is a reply of the server."""

from clearhead.serve import messages, part_messages


def test_every_exported_message_is_a_reply():
    replies = {getattr(reply, "__name__", "") for reply in messages.REPLIES.values()}
    assert set(part_messages.__all__) <= replies
