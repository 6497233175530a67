"""Write a Llama that `transformers` saved as a GGUF file, with the `gguf` package alone.

    python benchmarks/write_gguf.py MODELS/llama llama-q4_0.gguf --kind Q4_0

Nothing of Clearhead is imported: the file is one that other people's code has written, for `clearhead import` and
benchmarks/llama_cpp_check.py. The tokenizer must be a byte-level BPE that cuts texts as GPT-2's does.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

NORMAL, CONTROL = 1, 3


def add_sizes(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: dict) -> None:
    whole = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    names = {place: token for token, place in whole["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in whole["added_tokens"]}
    tokens = [{**names, **special}[i] for i in range(config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if i in special else NORMAL for i in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in whole["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(whole["post_processor"] is not None)


def pair_up(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Put entry i of a head's first half beside entry i of its second: llama.cpp rotates neighbours."""
    heads = weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(weight.shape))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", default="F32", help="of the matrices: F32, F16, Q8_0, Q4_0, Q5_1, …")
    asked = parser.parse_args()
    config = json.loads((asked.folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(asked.file, "llama")
    add_sizes(writer, config)
    add_tokenizer(writer, asked.folder, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weight in load_file(asked.folder / "model.safetensors").items():
        part = name.split(".")[-2]
        data = pair_up(weight, heads[part]) if part in heads else weight
        kind = gguf.GGMLQuantizationType.F32 if data.ndim == 1 else gguf.GGMLQuantizationType[asked.kind]
        theirs = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(theirs, gguf.quants.quantize(data.astype(np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
