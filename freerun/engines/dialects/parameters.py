"""The parameters of OpenAI's and vLLM's clients that are not simply done: what becomes of each.

Those that are done are the fields of the bodies. docs/serving.md has them all; a test holds the two together.
"""

from typing import Any

_SERVICE = "it is about OpenAI's service, not the answer"
_ANTHROPIC = "it is about Anthropic's service, not the answer"
IGNORED = {
    "user": _SERVICE,
    "metadata": _SERVICE,
    "store": _SERVICE,
    "service_tier": _SERVICE,
    "safety_identifier": _SERVICE,
    "prompt_cache_key": _SERVICE,
    "prompt_cache_options": _SERVICE,
    "prompt_cache_retention": _SERVICE,
    "prediction": "it makes answers faster, not different",
    "priority": "answers are written in the order in which they were asked for",
    "request_id": "every reply has an id of its own",
    "spaces_between_special_tokens": "tokenizers of today put none",
}
"""Taken, and without effect, since the answer would be the same."""

_FREE = "nothing here makes an answer follow a grammar: ask for it in the prompt, and check the answer"
REFUSED: dict[str, tuple[list[Any], str]] = {
    "response_format": ([{"type": "text"}], _FREE),
    "structured_outputs": ([], _FREE),
    "guided_json": ([], _FREE),
    "guided_regex": ([], _FREE),
    "guided_choice": ([], _FREE),
    "guided_grammar": ([], _FREE),
    "structural_tag": ([], _FREE),
    "guided_decoding_backend": ([], _FREE),
    "guided_whitespace_pattern": ([], _FREE),
    "suffix": ([""], "models here write on, they do not fill in"),
    "use_beam_search": ([False], "answers are sampled"),
    "length_penalty": ([1], "it belongs to beam search"),
    "early_stopping": ([False], "it belongs to beam search"),
    "modalities": ([["text"]], "answers are text"),
    "audio": ([], "answers are text"),
    "mm_processor_kwargs": ([], "this model reads text only"),
    "functions": ([[]], "OpenAI replaced it by tools"),
    "function_call": (["auto", "none"], "OpenAI replaced it by tools and tool_choice"),
    "web_search_options": ([], "there is no web search here"),
    "moderation": ([], "there is no moderation here"),
    "verbosity": (["medium"], "ask for a short or a long answer in the prompt"),
    "prompt_logprobs": ([], "log-probabilities are of sampled tokens only"),
    "bad_words": ([[]], "use logit_bias with token ids"),
    "logits_processors": ([[]], "use logit_bias, min_p or the penalties"),
    "thinking_token_budget": ([], "use max_tokens"),
    "chat_template": ([], "the model's own is used; chat_template_kwargs can tell it more"),
    "include_reasoning": ([True], "what the model thought comes apart, as reasoning_content"),
    "cache_salt": ([""], "all clients share one cache of prompts"),
    "kv_transfer_params": ([], "the cache stays in this engine"),
    "vllm_xargs": ([{}], "no such extension is here"),
}
"""Not done: the values that ask for nothing, which are taken, and what is replied to the others."""

RESPONSES_IGNORED = {
    "user": _SERVICE,
    "service_tier": _SERVICE,
    "safety_identifier": _SERVICE,
    "prompt_cache_key": _SERVICE,
    "prompt_cache_options": _SERVICE,
    "prompt_cache_retention": _SERVICE,
    "client_metadata": _SERVICE,
    "max_tool_calls": "it is about tools that OpenAI runs",
    "stream_options": "it is about OpenAI's own network",
}
RESPONSES_REFUSED: dict[str, tuple[list[Any], str]] = {
    "background": ([False], "wait for the answer, or stream it"),
    "conversation": ([], "use previous_response_id, or send the items"),
    "prompt": ([], "send instructions and input"),
    "context_management": ([[]], "nothing here compacts a conversation: send what the model shall read"),
    "moderation": ([], "there is no moderation here"),
    "top_logprobs": ([0], "use /v1/chat/completions, which gives log-probabilities"),
}

MESSAGES_IGNORED = {
    "metadata": _ANTHROPIC,
    "service_tier": _ANTHROPIC,
    "inference_geo": _ANTHROPIC,
    "user_profile_id": _ANTHROPIC,
    "workspace_id": _ANTHROPIC,
    "diagnostics": _ANTHROPIC,
    "speed": _ANTHROPIC,
    "betas": _ANTHROPIC,
    "fallback_credit_token": _ANTHROPIC,
    "cache_control": "prompts are kept in the cache as long as there is room",
}
MESSAGES_REFUSED: dict[str, tuple[list[Any], str]] = {
    "container": ([], "there are no containers here"),
    "mcp_servers": ([[]], "give tools, and call the server yourself"),
    "context_management": (
        [{}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}],
        "nothing here compacts a conversation: send what the model shall read",
    ),
    "compaction": ([], "nothing here compacts a conversation: send what the model shall read"),
    "fallbacks": ([[]], "there is one model here"),
    "thread": ([], "send the messages"),
}
