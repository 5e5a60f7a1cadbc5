//! Every trap between a body and the text that an engine sees.

use super::model::{CHATML, PARTS, THINKING, WITH_BOS, local, local_with, rendered};
use crate::tokenize::body::{Surface, read};
use crate::tokenize::json::Json;
use crate::tokenize::{Reason, Which};
use serde_json::{Value, json};

fn chat(template: &str, body: &Value) -> Result<String, Reason> {
    rendered(&local(template, Which::Fast), Surface::Chat, body)
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

#[test]
fn paths_name_surfaces() {
    assert_eq!(Surface::of("/v1/chat/completions?x=1"), Some(Surface::Chat));
    assert_eq!(Surface::of("/v1/completions"), Some(Surface::Completions));
    assert_eq!(Surface::of("/v1/messages"), Some(Surface::Messages));
    assert_eq!(Surface::of("/v1/responses"), Some(Surface::Responses));
    assert_eq!(
        Surface::of("/gateway/openai/v1/completions"),
        Some(Surface::Completions),
        "as the filter reads it"
    );
    for path in ["/v1/embeddings", "/v1/messages/count_tokens", "/v1/chat/completions/batch", "", "/tokenize"]
    {
        assert_eq!(Surface::of(path), None, "{path}");
    }
}

/// Name, template, body, what the engine sees.
type Case<'a> = (&'a str, &'a str, Value, &'a str);

fn check(table: &[Case<'_>]) {
    for (name, template, body, expected) in table {
        assert_eq!(chat(template, body).as_deref(), Ok(*expected), "{name}");
    }
}

#[test]
fn what_the_template_makes_of_a_chat() {
    let hi = [user("hi")];
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "input_text", "text": "b" }, { "type": "refusal", "refusal": "c" }]);
    let call = json!({ "function": { "arguments": "{\"b\": 1.0, \"a\": \"é<\"}", "name": "f" }, "id": "c1", "type": "function" });
    let table: &[Case<'_>] = &[
        (
            "generation prompt",
            CHATML,
            json!({ "messages": hi }),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "none asked for",
            CHATML,
            json!({ "messages": hi, "add_generation_prompt": false }),
            "<|im_start|>user\nhi<|im_end|>\n",
        ),
        ("chat has no marks, its template does", WITH_BOS, json!({ "messages": hi }), "<s>[user]hi"),
        (
            "both, if asked for",
            WITH_BOS,
            json!({ "messages": hi, "add_special_tokens": true }),
            "+<s>[user]hi",
        ),
        (
            "parts become one text",
            WITH_BOS,
            json!({ "messages": [{ "role": "user", "content": parts }] }),
            "<s>[user]a\nb\nc",
        ),
        (
            "or stay parts, where the template wants them",
            PARTS,
            json!({ "messages": [{ "role": "user", "content": parts }] }),
            "<user>(text:a)(text:b)(text:c)",
        ),
        ("and a text becomes one", PARTS, json!({ "messages": hi }), "<user>(text:hi)"),
        (
            "but a tool's answer is a text",
            PARTS,
            json!({ "messages": [{ "role": "tool", "tool_call_id": "1", "content": parts }] }),
            "<tool>text:a\nb\nc",
        ),
        (
            "no content is an empty one; arguments are an object",
            CHATML,
            json!({ "messages": [{ "role": "assistant", "content": null, "tool_calls": [call] }], "add_generation_prompt": false }),
            "<|im_start|>assistant\n[{\"function\": {\"arguments\": {\"b\": 1.0, \"a\": \"é<\"}, \
             \"name\": \"f\"}, \"id\": \"c1\", \"type\": \"function\"}]<|im_end|>\n",
        ),
        (
            "no calls are none",
            CHATML,
            json!({ "messages": [{ "role": "assistant", "content": "x", "tool_calls": [] }], "add_generation_prompt": false }),
            "<|im_start|>assistant\nx<|im_end|>\n",
        ),
    ];
    check(table);
}

#[test]
fn what_the_template_is_given_besides() {
    let hi = [user("hi")];
    let table: &[Case<'_>] = &[
        (
            "tools are dumped as the schema has them",
            CHATML,
            json!({ "messages": [], "add_generation_prompt": false, "tools": [{ "function": { "strict": true, "name": "f" }, "type": "function" }] }),
            "<|im_start|>system\ntools: [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \
             \"parameters\": null, \"strict\": true}}]<|im_end|>\n",
        ),
        (
            "no tools are none",
            CHATML,
            json!({ "messages": hi, "tools": [], "add_generation_prompt": false }),
            "<|im_start|>user\nhi<|im_end|>\n",
        ),
        (
            "template arguments",
            THINKING,
            json!({ "messages": hi, "chat_template_kwargs": { "enable_thinking": false } }),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        (
            "reasoning_effort is one",
            "{{ reasoning_effort }}",
            json!({ "messages": hi, "reasoning_effort": "low" }),
            "low",
        ),
        (
            "today",
            "{{ strftime_now('%d %b %Y, %A %H:%M %q') }}",
            json!({ "messages": hi }),
            "04 Mar 2026, Wednesday 05:06 %q",
        ),
        (
            "a name stays, unknown members do not",
            "{{ messages[0] | tojson }}",
            json!({ "messages": [{ "role": "user", "x": 1, "name": "n", "content": "c" }] }),
            r#"{"role": "user", "content": "c", "name": "n"}"#,
        ),
        (
            "Python's methods, loops that end early",
            "{% for m in messages %}{% if m.content.startswith('b') %}{% break %}{% endif %}{{ m.content.upper().strip('A') }}{% endfor %}",
            json!({ "messages": [user("aXa"), user("b"), user("c")] }),
            "X",
        ),
        (
            "training marks print nothing",
            "{% for m in messages %}{%- generation -%}{{ m.content }}{% endgeneration %}{% endfor %}",
            json!({ "messages": hi }),
            "hi",
        ),
        ("blocks are trimmed", "{% if true %}\n  x\n  {% endif %}\ny", json!({ "messages": hi }), "  x\ny"),
    ];
    check(table);
}

#[test]
fn what_an_assistant_thought_is_dropped_once_it_is_asked_again() {
    let thought = json!({ "role": "assistant", "reasoning_content": "hm", "content": "b" });
    let tool = json!({ "role": "tool", "content": "t" });
    let text = |messages: &[&Value]| {
        chat(THINKING, &json!({ "messages": messages, "add_generation_prompt": false })).unwrap()
    };
    let with = text(&[&user("a"), &thought, &tool]);
    let without = text(&[&user("a"), &thought, &user("c")]);
    assert!(with.contains("<think>\nhm\n</think>\n\nb"), "{with}");
    assert!(!without.contains("think"), "{without}");
}

#[test]
fn the_servers_own_arguments_come_before_the_requests() {
    let kwargs = vec![("x".to_owned(), Json::of("pool")), ("y".to_owned(), Json::of("pool"))];
    let local = local_with(Some("{{ x }} {{ y }}"), Which::Fast, kwargs);
    let body = json!({ "messages": [user("a")], "chat_template_kwargs": { "y": "request" } });
    assert_eq!(rendered(&local, Surface::Chat, &body).as_deref(), Ok("pool request"));
}

/// Surface, body, why not.
#[test]
fn what_cannot_be_compared_says_why() {
    let image = json!({ "type": "image_url", "image_url": { "url": "data:" } });
    let with = |member: &str, value: Value| {
        let mut body = json!({ "messages": [user("a")] });
        body[member] = value;
        body
    };
    let item = |item: Value| json!({ "input": [item] });
    let table: &[(Surface, Value, Reason)] = &[
        (Surface::Chat, json!({ "messages": [{ "role": "user", "content": [image] }] }), Reason::Multimodal),
        (Surface::Chat, with("continue_final_message", json!(true)), Reason::Continued),
        (Surface::Chat, with("chat_template", json!("x")), Reason::OwnTemplate),
        (Surface::Chat, with("truncate_prompt_tokens", json!(10)), Reason::Truncated),
        (Surface::Chat, json!({ "messages": [{ "content": "no role" }] }), Reason::Malformed),
        (Surface::Chat, json!({ "messages": [{ "role": "user", "content": 1 }] }), Reason::Malformed),
        (Surface::Chat, json!({ "messages": "a" }), Reason::Malformed),
        (Surface::Chat, json!([]), Reason::Malformed),
        (Surface::Completions, json!({ "prompt_embeds": "x" }), Reason::Multimodal),
        (Surface::Completions, json!({ "prompt": [-1] }), Reason::Malformed),
        (Surface::Completions, json!({ "prompt": [1, "a"] }), Reason::Malformed),
        (Surface::Completions, json!({}), Reason::Malformed),
        (
            Surface::Messages,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image", "source": {} }] }] }),
            Reason::Multimodal,
        ),
        (Surface::Responses, json!({ "input": "a", "previous_response_id": "r" }), Reason::Stored),
        (
            Surface::Responses,
            json!({ "input": "a", "tools": [{ "type": "function", "name": "f" }] }),
            Reason::Items,
        ),
        (Surface::Responses, item(json!({ "type": "function_call", "name": "f" })), Reason::Items),
        (Surface::Responses, item(json!({ "type": "reasoning" })), Reason::Items),
        (
            Surface::Responses,
            item(json!({ "role": "assistant", "status": "incomplete", "content": "x" })),
            Reason::Continued,
        ),
        (
            Surface::Responses,
            item(json!({ "role": "user", "content": [{ "type": "input_image" }] })),
            Reason::Multimodal,
        ),
    ];
    let local = local(CHATML, Which::Fast);
    for (surface, body, reason) in table {
        assert_eq!(rendered(&local, *surface, body), Err(*reason), "{body}");
    }
    let refusing = "{{ raise_exception('no system messages') }}";
    assert_eq!(chat(refusing, &json!({ "messages": [user("a")] })), Err(Reason::Template));
    let bare = local_with(None, Which::Fast, Vec::new());
    assert_eq!(rendered(&bare, Surface::Chat, &json!({ "messages": [user("a")] })), Err(Reason::NoTemplate));
    assert_eq!(rendered(&bare, Surface::Completions, &json!({ "prompt": "a" })).as_deref(), Ok("+a"));
}

#[test]
fn completions_are_text_or_tokens() {
    let local = local(CHATML, Which::Fast);
    let seen = |body: Value| rendered(&local, Surface::Completions, &body).unwrap();
    assert_eq!(seen(json!({ "prompt": "a" })), "+a");
    assert_eq!(seen(json!({ "prompt": ["b", "c"] })), "+b");
    assert_eq!(seen(json!({ "prompt": "a", "add_special_tokens": false })), "a");
    assert_eq!(seen(json!({ "prompt": [1, 2, 3] })), "[1, 2, 3]");
    assert_eq!(seen(json!({ "prompt": [[4, 5], [6]] })), "[4, 5]");
}

#[test]
fn messages_become_a_chat() {
    let body = json!({
        "system": [{ "type": "text", "text": "x-anthropic-billing-header: cch=1" }, { "type": "text", "text": "be" }, { "type": "text", "text": " kind" }],
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "a", "cache_control": { "type": "ephemeral" } }] },
            { "role": "assistant", "content": [{ "type": "thinking", "thinking": "hm", "signature": "s" }, { "type": "redacted_thinking", "data": "x" },
                { "type": "tool_use", "id": "t1", "name": "f", "input": { "a": 2, "z": 1 } }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "r" }, { "type": "text", "text": "s" }] },
                { "type": "text", "text": "b" }] },
        ],
        "tools": [{ "name": "f", "input_schema": { "properties": {} }, "cache_control": {} }],
    });
    let seen = rendered(
        &local("{{ messages | tojson }}{{ tools | tojson }}", Which::Fast),
        Surface::Messages,
        &body,
    )
    .unwrap();
    let messages = r#"[{"role": "system", "content": "be kind"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 2, "z": 1}}}], "reasoning": "hm", "reasoning_content": "hm"}, {"role": "tool", "content": "r\ns", "tool_call_id": "t1"}, {"role": "user", "content": "b"}]"#;
    let tools = r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"properties": {}, "type": "object"}}}]"#;
    assert_eq!(seen, format!("{messages}{tools}"));
}

#[test]
fn responses_become_a_chat_with_marks() {
    let local = local(CHATML, Which::Fast);
    let seen = |body: Value| rendered(&local, Surface::Responses, &body).unwrap();
    let expected = "+<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(seen(json!({ "instructions": "s", "input": "a" })), expected);
    let items = json!([{ "role": "user", "content": [{ "type": "input_text", "text": "a" }] }]);
    assert_eq!(seen(json!({ "instructions": "s", "input": items })), expected);
}

#[test]
fn salt_and_model_are_read() {
    let prompt = read(Surface::Completions, r#"{"prompt":"a","cache_salt":"s","model":"m"}"#, true).unwrap();
    assert_eq!((prompt.salt.as_deref(), prompt.model.as_deref()), (Some("s"), Some("m")));
}

/// Members keep their order, which serde_json's own values do not: the text is written by hand.
#[test]
fn the_order_of_members_is_the_clients() {
    let body = r#"{"messages":[],"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":{"y":2,"b":3},"z":4}}}]}"#;
    let local = local("{{ tools[0].function.parameters | tojson }}", Which::Fast);
    let prompt = read(Surface::Chat, body, true).unwrap();
    let text = format!("{:?}", local.render(prompt).unwrap());
    assert!(text.contains(r#"{\"z\": 4, \"a\": {\"y\": 2, \"b\": 3}}"#), "{text}");
}
