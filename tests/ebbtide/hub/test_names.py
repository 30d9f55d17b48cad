import pytest

from ebbtide.errors import StartupError
from ebbtide.hub.names import HubName, choose, gguf_models, parse_name, quantization_of


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tide/Tide-1B", HubName("tide/Tide-1B")),
        ("tide/Tide-1B-GGUF:Q4_K_M", HubName("tide/Tide-1B-GGUF", "Q4_K_M")),
        ("tide/t:folder/tide.gguf", HubName("tide/t", "folder/tide.gguf")),
        ("tide", None),
        ("tide/", None),
        ("a/b/c", None),
        ("a/b:", None),
        ("a b/c", None),
    ],
)
def test_a_name_is_owner_name_and_perhaps_a_label(text: str, name: HubName | None) -> None:
    assert parse_name(text) == name
    assert name is None or str(name) == text


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("Tide-1B-Instruct.Q4_K_M.gguf", "Q4_K_M"),
        ("tide-1b-q8_0.gguf", "Q8_0"),
        ("Tide-1B-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
        ("Q5_K_S/Tide-70B-Q5_K_S-00001-of-00002.gguf", "Q5_K_S"),
        ("BF16/tide.gguf", "BF16"),
        ("tide-fp16.gguf", "FP16"),
        ("Tide-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("Qwen2-tide.gguf", None),
        ("tide.gguf", None),
    ],
)
def test_the_quantization_is_in_the_files_name(path: str, label: str | None) -> None:
    assert quantization_of(path) == label


def test_gguf_models_are_the_first_parts_and_no_encoders() -> None:
    paths = [
        "t-Q4_0-00002-of-00002.gguf",
        "t-Q4_0-00001-of-00002.gguf",
        "mmproj-t-F16.gguf",
        "t.imatrix.gguf",
        "t.gguf",
    ]
    assert gguf_models(paths) == {
        "Q4_0": ("t-Q4_0-00001-of-00002.gguf", "t-Q4_0-00002-of-00002.gguf"),
        "t.gguf": ("t.gguf",),
    }


def test_two_files_with_one_label_are_two_models() -> None:
    assert gguf_models(["a-Q4_0.gguf", "b-Q4_0.gguf"]) == {"Q4_0": ("a-Q4_0.gguf",), "b-Q4_0.gguf": ("b-Q4_0.gguf",)}


def test_safetensors_are_chosen_without_a_label_and_only_once() -> None:
    paths = ["README.md", "config.json", "consolidated.safetensors", "model.safetensors", "original/x.safetensors"]
    choice = choose(
        HubName("o/n"), [*paths, "tokenizer.json", "t-Q4_0.gguf", "chat_template.jinja", "pytorch_model.bin"]
    )
    assert choice.weights == ("model.safetensors",)
    assert choice.others == ("chat_template.jinja", "config.json", "tokenizer.json")
    assert not choice.is_gguf


@pytest.mark.parametrize(
    ("label", "paths", "chosen"),
    [
        ("q8_0", ["t-Q4_K_M.gguf", "t-Q8_0.gguf"], "Q8_0"),
        ("t-Q8_0.gguf", ["t-Q4_K_M.gguf", "t-Q8_0.gguf"], "Q8_0"),
        (None, ["t-Q4_K_M.gguf", "t-Q8_0.gguf"], "Q4_K_M"),
        (None, ["t-Q8_0.gguf"], "Q8_0"),
    ],
)
def test_a_label_selects_a_gguf_model(label: str | None, paths: list[str], chosen: str) -> None:
    choice = choose(HubName("o/n", label), paths)
    assert (choice.name, choice.weights) == (HubName("o/n", chosen), (f"t-{chosen}.gguf",))


@pytest.mark.parametrize(
    ("name", "paths", "sentence"),
    [
        ("o/n:Q2_K", ["t-Q8_0.gguf", "t-Q6_K.gguf"], r"has no Q2_K: o/n:Q6_K, o/n:Q8_0\."),
        ("o/n", ["t-Q8_0.gguf", "t-Q6_K.gguf"], r"has several GGUF models; select one: o/n:Q6_K, o/n:Q8_0\."),
        ("o/n:Q2_K", ["config.json", "model.safetensors"], "has no GGUF files"),
        ("o/n", ["config.json", "pytorch_model.bin"], "has neither a config.json with safetensors nor GGUF files"),
    ],
)
def test_a_missing_model_is_refused_with_those_that_exist(name: str, paths: list[str], sentence: str) -> None:
    parsed = parse_name(name)
    assert parsed is not None
    with pytest.raises(StartupError, match=sentence):
        choose(parsed, paths)
