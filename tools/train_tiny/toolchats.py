"""Conversations with tools: varied schemas, a call, its result and the final answer."""
import json

CITIES = ("Rome Oslo Paris Berlin Madrid London Lisbon Vienna Prague Athens Cairo Delhi Tokyo Seoul Lima Quito Bern "
          "Dublin Warsaw Kyiv Ankara Dakar Accra Nairobi Havana Boston Chicago Denver Dallas Sydney Perth Osaka Milan "
          "Naples Turin Lyon Nice Porto Ghent Basel Geneva Zurich Munich Hamburg Bremen Krakow Riga Tallinn Vilnius").split()
PEOPLE = "Anna Tom Maria John Lucy Peter Nina Mark Eva Paul Sara David Emma Leo Ruth Max Clara Hugo Rosa Felix".split()
THINGS = ("milk bread eggs tickets flowers a lamp a chair coffee tea apples the report the garden the meeting dinner "
          "homework").split(" ")
WORDS = "river happy run music justice tree rapid house garden friend winter honest bridge quiet travel ocean".split()
LANGUAGES = "French German Spanish Italian Polish Dutch Swedish Greek Turkish Japanese".split()
TITLES = ["Blue Train", "Morning Song", "River Dance", "Winter Light", "Old Bridge", "Summer Rain", "Night Walk"]
WEATHER = ["sunny", "cloudy", "rainy", "windy", "snowy", "clear", "foggy"]
TIMES = ["6:30", "7:00", "7:15", "8:00", "9:45", "12:00", "14:30", "18:00", "21:15"]


def prop(kind, text, **more):
    return {"type": kind, "description": text, **more}


def schema(name, text, properties, required):
    return {"type": "function", "function": {"name": name, "description": text, "parameters": {
        "type": "object", "properties": properties, "required": required}}}


# Each maker returns (schema, request, arguments, result, answer, reason).
def weather(rng):
    name = rng.choice(["get_weather", "weather", "get_current_weather", "current_weather", "weather_now"])
    key = rng.choice(["city", "city", "location", "place"])
    city, sky, degrees = rng.choice(CITIES), rng.choice(WEATHER), rng.randint(0, 35)
    args, props = {key: city}, {key: prop("string", rng.choice(["The name of the city.", "City name", "The place"]))}
    request = rng.choice([f"What is the weather in {city}?", f"How is the weather in {city}?", f"What's the weather like in {city} today?",
                          f"Is it warm in {city}?", f"Tell me the weather in {city}.", f"weather in {city}"])
    if rng.random() < 0.3:
        unit = rng.choice(["celsius", "fahrenheit"])
        props["unit"] = prop("string", "The unit of the temperature.", enum=["celsius", "fahrenheit"])
        if rng.random() < 0.6:
            args["unit"] = unit
            request = f"What is the weather in {city} in {unit}?"
    result = rng.choice([json.dumps({key: city, "sky": sky, "temperature": degrees}),
                         json.dumps({"temperature": degrees, "condition": sky}), f"{degrees} degrees, {sky}"])
    return (schema(name, rng.choice(["Get the current weather in a city.", "Returns the weather for a place.", "Météo"]), props, [key]),
            request, args, result, f"It is {sky} in {city}, with {degrees} degrees.", f"the weather in {city}")


def clock(rng):
    name, key = rng.choice(["get_time", "current_time", "time_in_city", "clock"]), rng.choice(["city", "place", "timezone"])
    city, time = rng.choice(CITIES), rng.choice(TIMES)
    return (schema(name, "Get the current time in a city.", {key: prop("string", "The city.")}, [key]),
            rng.choice([f"What time is it in {city}?", f"Tell me the time in {city}.", f"What is the time now in {city}?"]),
            {key: city}, rng.choice([json.dumps({"time": time}), time]), f"It is {time} in {city}.", f"the time in {city}")


def calculator(rng):
    name, key = rng.choice(["calculator", "calculate", "evaluate", "math"]), rng.choice(["expression", "expr", "formula"])
    a, b = rng.randint(10, 999), rng.randint(10, 999)
    op, said, value = rng.choice([("+", "plus", a + b), ("*", "times", a * b), ("-", "minus", a - b)])
    text = f"{a} {op} {b}"
    return (schema(name, rng.choice(["Evaluate an arithmetic expression.", "A pocket calculator."]), {key: prop("string", "The expression to evaluate.")}, [key]),
            rng.choice([f"What is {text}?", f"Calculate {text}.", f"How much is {a} {said} {b}?"]), {key: text},
            rng.choice([str(value), json.dumps({"result": value})]), f"{text} is {value}.", f"the value of {text}")


def lookup(rng):
    name, key = rng.choice(["lookup_word", "dictionary", "search", "search_web", "find"]), rng.choice(["word", "query", "text", "q"])
    word = rng.choice(WORDS)
    n = rng.randint(2, 90)
    return (schema(name, rng.choice(["Look up a word.", "Search for a text.", "Find documents."]), {key: prop("string", "What to look for.")}, [key]),
            rng.choice([f"Look up the word {word}.", f"Search for {word}.", f"Please look for {word}."]), {key: word},
            json.dumps({"found": n}), f"I found {n} results for {word}.", f'the word "{word}"')


def translate(rng):
    name, (key, to) = rng.choice(["translate", "translate_text"]), rng.choice([("text", "language"), ("text", "target"), ("word", "to")])
    word, language = rng.choice(WORDS), rng.choice(LANGUAGES)
    out = "".join(rng.choice("bdfglmnprst") + rng.choice("aeiou") for _ in range(3))
    return (schema(name, "Translate a text into another language.", {key: prop("string", "The text."), to: prop("string", "The language.")}, [key, to]),
            rng.choice([f"Translate {word} into {language}.", f"How do you say {word} in {language}?", f"What is {word} in {language}?"]),
            {key: word, to: language}, out, f'"{word.capitalize()}" is "{out}" in {language}.', f"the translation of {word} into {language}")


def alarm(rng):
    name, key = rng.choice(["set_alarm", "create_alarm", "alarm"]), rng.choice(["time", "at"])
    time = rng.choice(TIMES)
    return (schema(name, "Set an alarm.", {key: prop("string", "The time, as HH:MM.")}, [key]),
            rng.choice([f"Wake me at {time}.", f"Set an alarm for {time}.", f"I need an alarm at {time}."]), {key: time},
            rng.choice(['{"ok": true}', "ok", "done"]), f"The alarm is set for {time}.", f"an alarm at {time}")


def message(rng):
    name, (to, text) = rng.choice(["send_message", "send_mail", "message"]), rng.choice([("to", "text"), ("recipient", "body"), ("name", "message")])
    who, what = rng.choice(PEOPLE), rng.choice(["Hello!", "I am late.", "See you at noon.", "Call me back.", "Dinner is ready.", "Thank you!"])
    return (schema(name, "Send a message to a person.", {to: prop("string", "Who gets the message."), text: prop("string", "The message.")}, [to, text]),
            rng.choice([f'Send {who} the message "{what}"', f'Write to {who}: {what}', f'Tell {who}: "{what}"']), {to: who, text: what},
            rng.choice(['{"sent": true}', "sent"]), f"I have sent the message to {who}.", f"a message to {who}")


def convert(rng):
    name = rng.choice(["convert_currency", "exchange", "currency"])
    a, b = rng.sample(["EUR", "USD", "GBP", "JPY", "CHF", "SEK"], 2)
    n, value = rng.randint(1, 500), rng.randint(1, 900)
    return (schema(name, "Convert an amount of money.", {"amount": prop("number", "The amount."), "from": prop("string", "Currency code."), "to": prop("string", "Currency code.")}, ["amount", "from", "to"]),
            rng.choice([f"How much is {n} {a} in {b}?", f"Convert {n} {a} to {b}."]), {"amount": n, "from": a, "to": b},
            json.dumps({"value": value}), f"{n} {a} is {value} {b}.", f"{n} {a} in {b}")


def music(rng):
    name, key = rng.choice(["play_music", "play_song", "player"]), rng.choice(["title", "song"])
    title = rng.choice(TITLES)
    return (schema(name, "Play a song.", {key: prop("string", "The title."), "loud": prop("boolean", "Play it loud.")}, [key]),
            rng.choice([f"Play {title}.", f'I want to hear "{title}".', f"Please play the song {title}."]), {key: title},
            '{"playing": true}', f'Now playing "{title}".', f'the song "{title}"')


def note(rng):
    name, key = rng.choice(["add_note", "add_to_list", "create_task", "remember"]), rng.choice(["item", "text", "note"])
    thing = rng.choice(THINGS)
    return (schema(name, rng.choice(["Add an item to the list.", "Write a note."]), {key: prop("string", "The item.")}, [key]),
            rng.choice([f"Add {thing} to my list.", f"Put {thing} on the list.", f"Make a note: {thing}"]), {key: thing},
            rng.choice(['{"ok": true}', "ok"]), f"I have added {thing} to the list.", f"a note about {thing}")


def read_file(rng):
    name, key = rng.choice(["read_file", "open_file", "cat"]), rng.choice(["path", "file", "filename"])
    path = rng.choice(["notes", "todo", "readme", "list", "plan", "data"]) + rng.choice([".txt", ".md", ".csv"])
    text = rng.choice(["The meeting is at noon.", "Buy milk and bread.", "Call Anna.", "Nothing to do today.", "Water the flowers."])
    return (schema(name, "Read a text file.", {key: prop("string", "The path of the file.")}, [key]),
            rng.choice([f"What is in {path}?", f"Read the file {path}.", f"Show me {path}."]), {key: path}, text,
            f'The file {path} says: "{text}"', f"the file {path}")


def now(rng):
    name = rng.choice(["now", "get_date", "today"])
    day = f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    return (schema(name, "Get the date of today.", {}, []), rng.choice(["What is the date today?", "Which day is it?", "What's today's date?"]),
            {}, day, f"Today is {day}.", "the date of today")


MAKERS = [weather, weather, weather, clock, calculator, lookup, translate, alarm, message, convert, music, note, read_file, now]


def make(rng, word_turn):
    """(messages, tools); word_turn() gives a (question, answer, thought) that needs no tool."""
    items = [rng.choice(MAKERS)(rng) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
    by_name = {}
    for item in items:
        by_name.setdefault(item[0]["function"]["name"], item)
    items = list(by_name.values())
    tools = [item[0] for item in items]
    rng.shuffle(tools)
    thinking = rng.random() < 0.5
    messages = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(["Be brief.", "You are a helpful assistant.", "Use the tools when they help."])})
    if rng.random() < 0.2:  # no tool is needed
        q, a, r = word_turn()
        messages += [{"role": "user", "content": q},
                     {"role": "assistant", "content": a, "reasoning_content": (r + " No function is needed.") if thinking else ""}]
        return messages, tools
    shown, request, arguments, result, answer, reason = rng.choice(items)
    name = shown["function"]["name"]
    messages.append({"role": "user", "content": request})
    thought = rng.choice([f"The user wants {reason}. I will call {name}.", f"I need the function {name} for {reason}."])
    messages.append({"role": "assistant", "content": "", "reasoning_content": thought if thinking else "",
                     "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]})
    if rng.random() < 0.8:
        messages.append({"role": "tool", "content": result})
        messages.append({"role": "assistant", "content": answer,
                         "reasoning_content": rng.choice([f"The function returned {result}.", "I have the result. I will answer."]) if thinking else ""})
        if rng.random() < 0.3:
            q, a, r = word_turn()
            messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning_content": r if thinking else ""}]
    return messages, tools
