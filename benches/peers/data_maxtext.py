"""MaxText's own way from json.gz to packed batches: datasets, transformers' fast tokenizer, grain's PackAndBatch.

Needs: pip install datasets transformers tokenizers tiktoken grain
Usage: data_maxtext.py 'FILES_GLOB' TIKTOKEN_FILE BATCH_SIZE MAX_TARGET_LENGTH
Prints one JSON line: seconds from the first row asked for to the last batch, tokens, batches.
"""

import json
import sys
import time

import datasets
import grain.python as grain
import numpy as np
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

files, tiktoken_file, batch_size, length = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
backend = TikTokenConverter(vocab_file=tiktoken_file, pattern=LLAMA3).converted()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
BOS, EOS = 128000, 128001


def tokenize(batch):
    # As MaxText's `tokenization`: one call a row, truncated.
    batch["text"] = [tokenizer(text, truncation=True, max_length=length - 2)["input_ids"] for text in batch["text"]]
    return batch


class Source:
    """Rows of an iterable data set behind grain's interface, as MaxText's HFDataSource."""

    def __init__(self, rows):
        self.rows = rows
        self.iterator = None

    def __len__(self):
        return 10_000_000_000

    def __getitem__(self, index):
        if self.iterator is None:
            self.iterator = iter(self.rows)
        return next(self.iterator)


class ToInputs(grain.MapTransform):
    def map(self, row):
        ids = np.asarray([BOS, *row["text"], EOS], dtype=np.int32)
        return {"inputs": ids, "targets": ids}


class Shift(grain.MapTransform):
    def map(self, packed):
        values, segments, positions = packed
        targets = np.pad(values["targets"], ((0, 0), (0, 1)))[:, 1:]
        segmentation = np.pad(segments["targets"], ((0, 0), (0, 1)))[:, 1:]
        for ignored in (0, BOS):
            segmentation = np.where(targets != ignored, segmentation, 0)
        return values["inputs"], segments["inputs"], positions["inputs"], targets, segmentation


start = time.perf_counter()
rows = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
rows = rows.shuffle(seed=0).select_columns(["text"]).map(tokenize, batched=True)
loader = grain.DataLoader(
    data_source=Source(rows),
    operations=[
        ToInputs(),
        grain.experimental.PackAndBatchOperation(
            batch_size=batch_size, length_struct={"inputs": length, "targets": length}
        ),
        Shift(),
    ],
    sampler=grain.IndexSampler(
        num_records=10_000_000_000,
        num_epochs=1,
        shard_options=grain.ShardOptions(shard_index=0, shard_count=1),
        shuffle=False,
        seed=0,
    ),
    worker_count=0,
    read_options=grain.ReadOptions(num_threads=1, prefetch_buffer_size=128),
)
tokens = batches = 0
iterator = iter(loader)
while True:
    try:
        batch = next(iterator)
    except (StopIteration, RuntimeError):  # the end of an iterable source surfaces as either
        break
    tokens += int((batch[1] != 0).sum())
    batches += 1
print(json.dumps({"seconds": time.perf_counter() - start, "tokens": tokens, "batches": batches}))
