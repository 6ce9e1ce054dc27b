#!/usr/bin/env python3
"""Reference token ids from the public Python packages, for crates/data/tests/tokenizer_ids.rs.

    pip install tiktoken sentencepiece regex
    python tests/reference/tokenizer_ids.py --shared ../shared

Reads the vocabularies (shared/tokenizers) and the C4 sample (shared/data/c4/en), and writes to crates/data/tests/golden:
  c4_ids.txt       a line per row, in the order of the file names: file, row, and a hash of its ids by each tokenizer
  tricky_ids.json  texts that go wrong easily, with their ids by each tokenizer
No BOS or EOS anywhere. The hash of ids: h = 14695981039346656037, then h = (h ^ id) * 1099511628211 mod 2^64 for
each id; its upper 32 bits in hex.
"""

import argparse
import gzip
import json
from pathlib import Path

import regex
import sentencepiece
import tiktoken
from tiktoken.load import load_tiktoken_bpe

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

MEGABYTE = 1 << 20

# A text, or (text, times) where it is repeated.
TRICKY = [
    "",
    " ",
    "  ",
    "\n",
    "\0",
    "a\0b\0\0c",
    "\x01\x02\x1f\x7f",
    "Hello, world!",
    " leading and trailing ",
    "  two  spaces   three    four     five ",
    ("\t", 7),
    (" ", 300),
    ("\n", 100),
    (" \n", 50),
    "a\r\nb\rc\n\rd\r\n\r\n  e",
    " \r\n \t\r\n x",
    "tab\tseparated\t\tvalues\n\tindented",
    "it's IT'S we'RE I'Ve you'LL 'd 'M o'clock 'tis rock'n'roll don't'",
    "long s: '\u017f and kelvin: '\u212a",
    "\u2019s curly don\u2019t",
    "1 12 123 1234 12345 1234567890123",
    "3.14159, 1,000,000.00 and 0x1F600",
    "\u00bd \u00b2 \u0663\u0664\u0665\u0666 \u2167 \u096a\u096b\u096c\u096d",
    "\U0001f600\U0001f601",
    "family: \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 flag: \U0001f1e9\U0001f1ea",
    "thumbs \U0001f44d\U0001f3fd heart \u2764\ufe0f keycap 1\ufe0f\u20e3",
    "\u0627\u0644\u0644\u063a\u0629 \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd mixed \u202eltr\u202c",
    "e\u0301 vs \u00e9, a\u0308\u0323, Z\u0351\u036b\u0343\u0342\u032c\u0326",
    "\u65e5\u672c\u8a9e\u3067\u3059\u3002\u4e2d\u6587\u5b57\u7b26\uff0c\ud55c\uad6d\uc5b4",
    "\u3000ideographic\u3000space\u00a0nbsp\u2003em\u200bzero\u2060joiner",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d\u0926\u0940 \u1780\u1798\u17d2\u1796\u17bb\u1787\u17b6",
    "\ufffd\ufffd replacement \ufffe\uffff",
    "\ufeffbyte order mark",
    "\u0085next line\u2028separator\u2029paragraph",
    "\U0010ffff\U000e0001\U000f0000",
    "\u2581 lower one eighth block \u2581\u2581x",
    "<|begin_of_text|>not special<|end_of_text|><|eot_id|>",
    "<s>not special</s> <unk> <0x0A>",
    "https://example.com/path?query=1&other=%20#fragment user@example.org",
    "def f(x):\n    return x**2  # comment\n\n\nclass A:\n\tpass\n",
    "$100 \u20ac50 \u00a330 100% #hashtag @user ^_^ \u00af\\_(\u30c4)_/\u00af",
    "----------------------------------------------------------------",
    "!!!???...;;;:::\n\n\n...",
    "antidisestablishmentarianism Donaudampfschifffahrtsgesellschaft",
    "\u0130stanbul \u00df\u1e9e \u01c6 \u2126 \ufb01 \u1e69",
    ("ab", 300),
    ("\u00e9", 200),
    ("1", 1001),
    ("a", MEGABYTE),
    (" ", MEGABYTE),
    ("\n", MEGABYTE),
    ("=", MEGABYTE),
    ("7", MEGABYTE),
    ("\u65e5", MEGABYTE // 3),
    ("\U0001f600", MEGABYTE // 4),
    ("\0", MEGABYTE),
    ("xyz ", MEGABYTE // 4),
]


def ids_hash(ids):
    value = 14695981039346656037
    for token in ids:
        value = (value ^ token) * 1099511628211 % (1 << 64)
    return f"{value >> 32:08x}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--shared", type=Path, default=root.parent / "shared")
    parser.add_argument("--out", type=Path, default=root / "crates/data/tests/golden")
    args = parser.parse_args()

    ranks = load_tiktoken_bpe(str(args.shared / "tokenizers/tokenizer_llama3.tiktoken"))
    llama3 = tiktoken.Encoding("llama3", pat_str=LLAMA3_PATTERN, mergeable_ranks=ranks, special_tokens={})
    llama2 = sentencepiece.SentencePieceProcessor(model_file=str(args.shared / "tokenizers/tokenizer.llama2"))

    def encode_llama3(text):
        try:
            return llama3.encode_ordinary(text)
        except BaseException as panic:  # pyo3's PanicException is no Exception
            # The regex engine inside tiktoken runs out of stack on very long runs of white space: split without it.
            if "StackOverflow" not in str(panic):
                raise
            pieces = regex.findall(LLAMA3_PATTERN, text)
            return [token for piece in pieces for token in llama3._encode_single_piece(piece)]

    tokenizers = {"llama3": encode_llama3, "llama2": llama2.encode}

    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "c4_ids.txt", "w") as out:
        print("# file row", *tokenizers, file=out)
        for path in sorted((args.shared / "data/c4/en").glob("*.json.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for row, line in enumerate(lines, 1):
                    text = json.loads(line)["text"]
                    print(path.name, row, *(ids_hash(encode(text)) for encode in tokenizers.values()), file=out)

    with open(args.out / "tricky_ids.json", "w") as out:
        entries = []
        for case in TRICKY:
            text, times = case if isinstance(case, tuple) else (case, 1)
            entry = {"text": text, "times": times}
            for name, encode in tokenizers.items():
                ids = encode(text * times)
                entry[name] = ids if len(ids) <= 100 else {"count": len(ids), "hash": ids_hash(ids)}
            entries.append(json.dumps(entry))
        out.write("[\n" + ",\n".join(entries) + "\n]\n")


if __name__ == "__main__":
    main()
