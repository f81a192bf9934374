"""Segments once more, slow and obvious: spell a row out byte by byte, look for the tags, walk back to tokens."""

from egpo.segments.tags import token_spellings


def spelled_bytes(ids, mask, tokenizer):
    """(byte, token position) pairs; a masked token is a break that no tag can cross."""
    spellings = token_spellings(tokenizer)
    out = []
    for position, (i, on) in enumerate(zip(ids, mask, strict=True)):
        if on:
            out += [(byte, position) for byte in spellings[i]]
        else:
            out.append((None, position))
    return out


def first_end(pairs, tag):
    tag = list(tag.encode())
    for start in range(len(pairs) - len(tag) + 1):
        if [byte for byte, _ in pairs[start : start + len(tag)]] == tag:
            return pairs[start + len(tag) - 1][1]
    return None


def segments(ids, mask, tokenizer, tags, opened):
    pairs = spelled_bytes(ids, mask, tokenizer)
    opening, closing = (first_end(pairs, tag) for tag in tags)
    thinking, answer = [], []
    for position, on in enumerate(mask):
        after_opening = opening is not None and position > opening
        if closing is not None:
            starts_late = not opened and opening is not None and opening < closing
            thinks = position <= closing and (after_opening or not starts_late)
            answers = position > closing
        else:
            thinks = opened or after_opening
            answers = not opened and opening is None
        thinking.append(bool(on and thinks))
        answer.append(bool(on and answers))
    return thinking, answer
