"""What the official client makes of the server's answers; argument: the base URL."""

import asyncio
import enum
import json
import sys
import time
from typing import Optional

import openai
import pydantic
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

try:
    import jsonschema
except ImportError:
    jsonschema = None

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
RIVER = [{"role": "user", "content": "What is a river?"}]
ANSWER = "A river is a large stream of water that flows across the land to a sea or a lake."
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "Get the time in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
]


def create(messages, **options):
    return client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, **options
    )


def wait_until_ready():
    for _ in range(15000):  # five minutes
        try:
            client.models.list()
            return
        except openai.InternalServerError:
            time.sleep(0.02)
    raise SystemExit("the server does not become ready")


def test_models():
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "calla"


def test_chat():
    answer = create(RIVER)
    choice = answer.choices[0]
    assert choice.message.content == ANSWER
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert choice.message.model_extra["reasoning_content"]
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    again = create(RIVER)
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens


def test_streaming():
    chunks = list(create(RIVER, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens > 20 and not chunks[-1].choices
    assert all(c.id == chunks[0].id for c in chunks)


def test_thinking_switch():
    answer = create(RIVER, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert "reasoning_content" not in answer.choices[0].message.model_extra
    answer = create(RIVER, reasoning_effort="none")
    assert "reasoning_content" not in answer.choices[0].message.model_extra


def test_tools():
    answer = create(WEATHER, tools=TOOLS)
    message = answer.choices[0].message
    call = message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    # The message goes back as the client made it.
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}
    answer = create(WEATHER + [message, result], tools=TOOLS)
    assert "sunny" in answer.choices[0].message.content
    assert answer.usage.prompt_tokens_details.cached_tokens > 200


def test_streamed_tools():
    arguments, name, ids = "", "", set()
    for chunk in create(WEATHER, tools=TOOLS, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
            ids.add(call.id)
    assert name == "get_weather" and json.loads(arguments) == {"city": "Paris"}
    assert len(ids - {None}) == 1


def test_tool_choice():
    answer = create(RIVER, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls) == 1
    choice = {"type": "function", "function": {"name": "get_time"}}
    answer = create(RIVER, tools=TOOLS, tool_choice=choice)
    assert answer.choices[0].message.tool_calls[0].function.name == "get_time"
    answer = create(WEATHER, tools=TOOLS, tool_choice="none")
    assert not answer.choices[0].message.tool_calls


def test_parallel_tools():
    """Several calls in the history, with their results."""
    calls = [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
        }
        for i, city in enumerate(["Paris", "Rome"])
    ]
    results = [
        {"role": "tool", "tool_call_id": c["id"], "content": "sunny, 21 degrees"} for c in calls
    ]
    history = WEATHER + [{"role": "assistant", "content": None, "tool_calls": calls}] + results
    assert create(history, tools=TOOLS).choices[0].message.content


def test_logprobs():
    answer = create(RIVER, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert "".join(t.token for t in tokens) == ANSWER
    assert b"".join(bytes(t.bytes) for t in tokens).decode() == ANSWER
    assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in tokens)


def test_choices():
    answer = create(RIVER, n=3, extra_body={"enable_thinking": False})
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert all(c.message.content == ANSWER for c in answer.choices)


def test_completions():
    answer = client.completions.create(
        model="tiny", prompt="A river is", max_tokens=4, temperature=0, logprobs=1
    )
    assert answer.choices[0].text == " a large natural stream"
    assert answer.choices[0].logprobs.tokens == [" a", " large", " natural", " stream"]
    chunks = client.completions.create(
        model="tiny", prompt="A river is", max_tokens=4, temperature=0, stream=True
    )
    assert "".join(c.choices[0].text for c in chunks) == " a large natural stream"


class Kind(str, enum.Enum):
    RIVER = "river"
    LAKE = "lake"


class Place(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    kind: Kind
    length_km: int = pydantic.Field(ge=0, le=9999)
    depth: float = pydantic.Field(gt=0, lt=100)
    mouth: Optional["Place"] = None
    tags: list[str] = pydantic.Field(max_length=2)


def test_structured_parse():
    """The client's own way from a class to a schema and back."""
    for seed in range(3):
        answer = client.chat.completions.parse(
            model="tiny", messages=RIVER, response_format=Place, temperature=1, seed=seed,
            logprobs=True, max_tokens=1200,
        )
        choice = answer.choices[0]
        if choice.finish_reason == "length":
            continue
        place = choice.message.parsed
        assert isinstance(place, Place) and place.length_km <= 9999 and 0 < place.depth < 100
    stream = create(RIVER, stream=True, max_tokens=400,
                    response_format={"type": "json_object"})
    text = "".join(c.choices[0].delta.content or "" for c in stream)
    assert text.startswith("{")


class Trip(pydantic.BaseModel):
    """Plan a trip."""

    city: str = pydantic.Field(max_length=12)
    days: int = pydantic.Field(ge=1, le=9)
    kind: Kind
    note: Optional[str] = pydantic.Field(max_length=8)
    stops: list[Kind] = pydantic.Field(max_length=2)


def test_strict_tools():
    """A class as a function: the client sets strict, and reads the arguments back as the class."""
    tools = [openai.pydantic_function_tool(Trip)]
    assert tools[0]["function"]["strict"]
    for seed in range(4):
        answer = client.chat.completions.parse(
            model="tiny", messages=RIVER, tools=tools, tool_choice="required", temperature=1.5,
            seed=seed, parallel_tool_calls=False, extra_body={"thinking_budget": 20},
        )
        assert answer.choices[0].finish_reason == "tool_calls"
        trip = answer.choices[0].message.tool_calls[0].function.parsed_arguments
        assert isinstance(trip, Trip) and 1 <= trip.days <= 9 and len(trip.stops) <= 2
    strict = json.loads(json.dumps(TOOLS))
    for tool in strict:
        tool["function"]["strict"] = True
        tool["function"]["parameters"]["additionalProperties"] = False
    message = create(WEATHER, tools=strict).choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris"}


SCHEMAS = [
    {"type": "array", "items": {"type": "integer", "minimum": 3, "maximum": 77, "multipleOf": 3},
     "minItems": 1, "maxItems": 4},
    {"type": "object", "properties": {"when": {"type": "string", "format": "date-time"},
                                      "id": {"type": "string", "format": "uuid"},
                                      "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"}},
     "required": ["when", "id", "code"], "additionalProperties": False},
    {"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "number"}},
                "required": ["t", "x"], "additionalProperties": False},
               {"type": "object", "properties": {"t": {"const": "b"}, "y": {"type": "boolean"}},
                "required": ["t", "y"], "additionalProperties": False}]},
    {"type": "string", "minLength": 3, "maxLength": 9},
    {"enum": ["one", 2, None, [3]]},
    {"type": "number", "exclusiveMinimum": -0.5, "maximum": 0.25},
]


def test_structured_against_jsonschema():
    if jsonschema is None:
        print("SKIP: no jsonschema package")
        return
    for schema in SCHEMAS:
        for seed in range(4):
            answer = client.chat.completions.create(
                model="tiny", messages=RIVER, temperature=1.5, seed=seed, max_tokens=600,
                extra_body={"enable_thinking": False},
                response_format={"type": "json_schema",
                                 "json_schema": {"name": "it", "schema": schema}},
            )
            assert answer.choices[0].finish_reason == "stop"
            jsonschema.validate(json.loads(answer.choices[0].message.content), schema)


FLAT_TOOLS = [{"type": "function", "strict": False, **t["function"]} for t in TOOLS]


def respond(question, **options):
    return client.responses.create(model="tiny", input=question, temperature=0, **options)


def test_responses():
    answer = respond("What is a river?", instructions="You are a dictionary.")
    assert answer.status == "completed" and answer.error is None and answer.store is False
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output[0].content[0].text and answer.output[0].summary == []
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens_details.reasoning_tokens > 5
    answer = respond(RIVER)
    assert answer.output_text == ANSWER
    again = respond(RIVER, store=True)
    assert again.usage.input_tokens_details.cached_tokens == again.usage.input_tokens
    count = client.responses.input_tokens.count(model="tiny", input=RIVER)
    assert count.input_tokens == answer.usage.input_tokens
    answer = respond(RIVER, reasoning={"effort": "none"})
    assert [item.type for item in answer.output] == ["message"]
    answer = respond(RIVER, max_output_tokens=40)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[1].status == "incomplete" and ANSWER.startswith(answer.output_text)


def test_responses_streaming():
    with client.responses.stream(model="tiny", input="What is a river?", temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == ANSWER
    assert [e.sequence_number for e in events] == list(range(len(events)))
    types = [e.type for e in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] == "response.completed"
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    thought = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
    assert text == ANSWER and thought == final.output[0].content[0].text
    for event in respond(RIVER, stream=True, max_output_tokens=3):
        last = event
    assert last.type == "response.incomplete"


def test_responses_tool_loop():
    """All that came goes back, as the client made it; and the same without the reasoning."""
    history = list(WEATHER)
    answer = client.responses.create(
        model="tiny", input=history, tools=FLAT_TOOLS, temperature=0, store=False,
        include=["reasoning.encrypted_content"],
    )
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [c.name for c in calls] == ["get_weather"]
    assert json.loads(calls[0].arguments) == {"city": "Paris"}
    output = {"type": "function_call_output", "call_id": calls[0].call_id,
              "output": "sunny, 21 degrees"}
    first = respond(history + answer.output + [output], tools=FLAT_TOOLS)
    assert "sunny" in first.output_text
    known = answer.usage.input_tokens + answer.usage.output_tokens
    assert first.usage.input_tokens_details.cached_tokens >= known - 2
    second = respond(history + calls + [output], tools=FLAT_TOOLS)
    assert second.output_text == first.output_text
    assert second.usage.input_tokens == first.usage.input_tokens
    # The same conversation as a chat is the same prompt.
    call = {"id": calls[0].call_id, "type": "function",
            "function": {"name": "get_weather", "arguments": calls[0].arguments}}
    chat = create(WEATHER + [{"role": "assistant", "content": None, "tool_calls": [call]},
                             {"role": "tool", "tool_call_id": call["id"],
                              "content": "sunny, 21 degrees"}], tools=TOOLS)
    assert chat.usage.prompt_tokens == first.usage.input_tokens
    assert chat.usage.prompt_tokens_details.cached_tokens == chat.usage.prompt_tokens
    assert chat.choices[0].message.content == first.output_text


def test_responses_streamed_tools():
    arguments, done = "", None
    for event in respond(WEATHER, tools=FLAT_TOOLS + [{"type": "web_search"}], stream=True):
        if event.type == "response.function_call_arguments.delta":
            arguments += event.delta
        if event.type == "response.output_item.done" and event.item.type == "function_call":
            done = event.item
    assert json.loads(arguments) == {"city": "Paris"} and done.arguments == arguments
    assert event.response.model_extra["calla"] == {"ignored_tools": ["web_search"]}


def test_responses_tool_choice():
    def called(**options):
        answer = respond(RIVER, tools=FLAT_TOOLS, **options)
        return [item.name for item in answer.output if item.type == "function_call"]

    assert len(called(tool_choice="required", parallel_tool_calls=False)) == 1
    assert called(tool_choice={"type": "function", "name": "get_time"}) == ["get_time"]
    only = {"type": "allowed_tools", "mode": "required",
            "tools": [{"type": "function", "name": "get_time"}]}
    assert set(called(tool_choice=only)) == {"get_time"}
    answer = respond(WEATHER, tools=FLAT_TOOLS, tool_choice="none")
    assert all(item.type != "function_call" for item in answer.output)


def test_responses_parallel_tools():
    """Several calls in the history, with their results as texts and as parts."""
    calls = [
        {"type": "function_call", "call_id": f"call_{i}", "name": "get_weather",
         "arguments": json.dumps({"city": city})}
        for i, city in enumerate(["Paris", "Rome"])
    ]
    results = [
        {"type": "function_call_output", "call_id": "call_0", "output": "sunny, 21 degrees"},
        {"type": "function_call_output", "call_id": "call_1",
         "output": [{"type": "input_text", "text": "sunny, 21 degrees"}]},
    ]
    assert respond(WEATHER + calls + results, tools=FLAT_TOOLS).output_text


def test_responses_parse():
    for seed in range(3):
        answer = client.responses.parse(
            model="tiny", input="What is a river?", text_format=Place, temperature=1,
            max_output_tokens=1200, extra_body={"seed": seed},
        )
        if answer.status == "incomplete":
            continue
        place = answer.output_parsed
        assert isinstance(place, Place) and place.length_km <= 9999 and 0 < place.depth < 100
    answer = respond("Give me JSON.", text={"format": {"type": "json_object"}},
                     max_output_tokens=400)
    assert answer.output_text.startswith("{")


def test_responses_logprobs():
    answer = respond(RIVER, include=["message.output_text.logprobs"], top_logprobs=2)
    tokens = answer.output[1].content[0].logprobs
    assert "".join(t.token for t in tokens) == ANSWER
    assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in tokens)


def test_responses_to_the_letter():
    """As the client's own types have them, without its leniency."""
    event_type = pydantic.TypeAdapter(ResponseStreamEvent)
    requests = [
        {"input": RIVER, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"input": WEATHER, "tools": FLAT_TOOLS, "instructions": "Be short.",
         "reasoning": {"effort": "high", "summary": "auto"}, "metadata": {"a": "b"}},
        {"input": RIVER, "max_output_tokens": 5},
        {"input": RIVER, "max_output_tokens": 50, "text": {"format": {
            "type": "json_schema", "name": "it", "schema": {"type": "object"}}}},
    ]
    for request in requests:
        raw = client.responses.with_raw_response.create(model="tiny", temperature=0, **request)
        Response.model_validate_json(raw.text, strict=True)
        raw = client.responses.with_raw_response.create(
            model="tiny", temperature=0, stream=True, **request
        )
        raw.http_response.read()
        for event in raw.http_response.text.strip().split("\n\n"):
            name, data = event.split("\n")
            parsed = event_type.validate_json(data.removeprefix("data: "), strict=True)
            assert name == f"event: {parsed.type}"


def test_responses_errors():
    def refused(param, **options):
        return expect(openai.BadRequestError, 400, param, lambda: respond(RIVER, **options))

    e = refused("previous_response_id", previous_response_id="resp_1")
    assert "stores no" in e.message
    refused("conversation", conversation="conv_1")
    refused("background", background=True)
    refused("truncation", truncation="auto")
    refused("include[0]", include=["file_search_call.results"])
    refused("text.format.schema.not", text={"format": {
        "type": "json_schema", "name": "it", "schema": {"not": {}}}})
    expect(openai.BadRequestError, 400, "input[0].content[0].type", lambda: respond(
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]))
    e = expect(openai.BadRequestError, 400, "input", lambda: respond("word " * 4000))
    assert e.code == "context_length_exceeded" and "maximum context length is 2048" in e.message
    e = expect(openai.NotFoundError, 404, None, lambda: client.responses.retrieve("resp_1"))
    assert "stores none" in e.message
    expect(openai.NotFoundError, 404, None, lambda: client.responses.delete("resp_1"))
    expect(openai.NotFoundError, 404, "model", lambda: client.responses.create(
        model="other", input="Hi"))


def raw_events(response):
    lines = response.text.split("\n\n")
    events = [line[6:] for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return events[:-1]


def test_types_to_the_letter():
    """Answers as the client's own types have them, without its leniency."""
    requests = [
        {"messages": RIVER, "logprobs": True, "top_logprobs": 2},
        {"messages": WEATHER, "tools": TOOLS},
        {"messages": RIVER, "n": 2, "extra_body": {"enable_thinking": False}},
    ]
    for request in requests:
        raw = client.chat.completions.with_raw_response.create(
            model="tiny", temperature=0, **request
        )
        ChatCompletion.model_validate_json(raw.text, strict=True)
        raw = client.chat.completions.with_raw_response.create(
            model="tiny", temperature=0, stream=True, stream_options={"include_usage": True}, **request
        )
        raw.http_response.read()
        for event in raw_events(raw.http_response):
            chunk = ChatCompletionChunk.model_validate_json(event, strict=True)
            assert "usage" in chunk.model_fields_set
    raw = client.completions.with_raw_response.create(
        model="tiny", prompt="A river is", max_tokens=4, logprobs=2
    )
    Completion.model_validate_json(raw.text, strict=True)
    raw = client.models.with_raw_response.retrieve("tiny")
    Model.model_validate_json(raw.text, strict=True)


def test_a_stream_that_is_left():
    """The server is as well as before."""
    for chunk in create(RIVER, stream=True):
        if chunk.choices[0].delta.content:
            break
    stream = create(RIVER, stream=True)
    next(iter(stream))
    stream.close()
    assert create(RIVER).choices[0].message.content == ANSWER


def test_async():
    async def ask():
        async with openai.AsyncOpenAI(base_url=sys.argv[1], api_key="none") as c:
            answers = await asyncio.gather(
                *(
                    c.chat.completions.create(model="tiny", messages=RIVER, temperature=0)
                    for _ in range(12)
                )
            )
        assert all(a.choices[0].message.content == ANSWER for a in answers)

    asyncio.run(ask())


def expect(error, status, param, call):
    try:
        call()
    except error as e:
        assert e.status_code == status, e.status_code
        assert e.param == param, e.param
        assert e.message
        return e
    raise AssertionError("no error")


def test_errors():
    expect(openai.NotFoundError, 404, "model", lambda: client.chat.completions.create(
        model="other", messages=RIVER))
    expect(openai.BadRequestError, 400, "temperature", lambda: client.chat.completions.create(
        model="tiny", messages=RIVER, temperature=9))
    expect(openai.BadRequestError, 400, "nothing", lambda: create(
        RIVER, extra_body={"nothing": 1}))
    expect(openai.BadRequestError, 400, "response_format.json_schema.schema.not", lambda: create(
        RIVER, response_format={"type": "json_schema", "json_schema": {
            "name": "it", "schema": {"not": {}}}}))
    long = [{"role": "user", "content": "word " * 4000}]
    e = expect(openai.BadRequestError, 400, "messages", lambda: create(long))
    assert e.code == "context_length_exceeded" and "maximum context length is 2048" in e.message


wait_until_ready()
for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name)
