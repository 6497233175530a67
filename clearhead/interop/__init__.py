"""Models in other people's formats: read into specs and weights of ours, one small table an architecture."""

from clearhead.interop.huggingface import Imported, read_hugging_face
from clearhead.interop.torch_modules import read_torch_state_dict

__all__ = ["Imported", "read_hugging_face", "read_torch_state_dict"]
