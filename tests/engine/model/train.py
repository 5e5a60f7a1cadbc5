"""Trains the fake engine's tokenizer: a byte-level BPE of 2,048 tokens over corpus.txt, all text of our own.

Run in this folder, in any Python with `pip install tokenizers==0.23.3`:

    python3 train.py

Writes tokenizer.json and tokenizer_config.json beside itself. The same corpus gives the same files.
"""

import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
# Ids 0..3, as in the captured answers of a real engine: BOS 0, turn marks 2 and 3.
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
# No whitespace control: what stands between the tags is what the model sees.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "tools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n"
    "{{ message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train([str(HERE / "corpus.txt")], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def main() -> None:
    train().save(str(HERE / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "model_max_length": 131072,
        "chat_template": TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (HERE / "tokenizer_config.json").write_text(text)


if __name__ == "__main__":
    main()
