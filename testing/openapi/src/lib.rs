//! The description of the agent's API in OpenAPI 3.1, made from the types that the agent and its clients
//! share. `docs/openapi.json` is its text, which a test compares with it.

mod builder;
mod routes;

#[cfg(test)]
mod tests;

use serde_json::Value;

/// The description.
#[must_use]
pub fn document() -> Value {
    let mut api = builder::Builder::new();
    routes::all(&mut api);
    api.finish()
}

/// The text of the description, as `docs/openapi.json` has it: one line for each path and each schema, as
/// the agent contains it.
#[must_use]
pub fn text() -> String {
    lines(&document(), 2) + "\n"
}

/// JSON whose maps have a line for each entry, down to that depth.
fn lines(value: &Value, depth: usize) -> String {
    match value {
        Value::Object(map) if depth > 0 && map.values().any(Value::is_object) => {
            let depth = if map.contains_key("schemas") { depth } else { depth - 1 };
            let entries: Vec<String> = map
                .iter()
                .map(|(key, inner)| format!("{}:{}", Value::from(key.as_str()), lines(inner, depth)))
                .collect();
            format!("{{\n{}\n}}", entries.join(",\n"))
        }
        other => other.to_string(),
    }
}
