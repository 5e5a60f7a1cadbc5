"""The official OpenAI client against the base URL given as the only argument: what applications do, nothing of ours but
one header. Prints one JSON object with what came back; any exception is a failure."""

import json
import sys

import openai

client = openai.OpenAI(
    base_url=sys.argv[1], api_key="none", max_retries=0, timeout=60,
    default_headers={"x-session-id": "official-client"},
)
QUESTION = [{"role": "user", "content": "What keeps a conversation on its rank?"}]


def slot(raw):
    return [raw.headers.get("x-engine-name"), raw.headers.get("x-engine-rank")]


raw = client.chat.completions.with_raw_response.create(model="tiny", messages=QUESTION, max_tokens=16)
chat = raw.parse()
slots = [slot(raw)]

messages = QUESTION + [{"role": "assistant", "content": chat.choices[0].message.content}, {"role": "user", "content": "And then?"}]
streamed, chunks, usage = "", 0, None
with client.chat.completions.with_streaming_response.create(
    model="tiny", messages=messages, max_tokens=16, stream=True, stream_options={"include_usage": True}
) as answer:
    slots.append(slot(answer))
    for chunk in answer.parse():
        chunks += 1
        usage = chunk.usage or usage
        if chunk.choices:
            streamed += chunk.choices[0].delta.content or ""

raw = client.responses.with_raw_response.create(model="tiny", input="Say it in one line.", max_output_tokens=16)
response = raw.parse()
slots.append(slot(raw))

events = [event.type for event in client.responses.create(model="tiny", input="Once more.", max_output_tokens=8, stream=True)]
embeddings = client.embeddings.create(model="tiny", input=["one", "two"])
models = [model.id for model in client.models.list()]

print(json.dumps({
    "version": openai.__version__,
    "chat": chat.choices[0].message.content,
    "streamed": streamed,
    "chunks": chunks,
    "cached_tokens": usage.prompt_tokens_details.cached_tokens,
    "response": response.output_text,
    "events": events,
    "dimensions": [len(item.embedding) for item in embeddings.data],
    "models": models,
    "slots": slots,
}))
