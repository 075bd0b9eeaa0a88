//! Collects routes and the schemas of what they take and answer.

use std::collections::BTreeSet;

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

const SCHEMAS: &str = "#/components/schemas/";
/// Added to the name of a type that is read in other forms than it is written.
const READ: &str = "Read";

/// A description in the making.
pub(crate) struct Builder {
    /// Schemas of what the agent reads.
    read: SchemaGenerator,
    /// Schemas of what it writes.
    written: SchemaGenerator,
    paths: Map<String, Value>,
}

/// One route in the making.
pub(crate) struct Route<'a> {
    api: &'a mut Builder,
    path: &'static str,
    method: String,
    operation: Value,
}

/// A type's schema, or a reference to it.
fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

impl Builder {
    pub(crate) fn new() -> Builder {
        let settings = SchemaSettings::draft2020_12()
            .with(|settings| settings.definitions_path = "/components/schemas".into());
        Builder {
            read: settings.clone().for_deserialize().into_generator(),
            written: settings.for_serialize().into_generator(),
            paths: Map::new(),
        }
    }

    /// Begins a route, with the right that its caller needs and one sentence about it.
    pub(crate) fn route(
        &mut self,
        method: &str,
        path: &'static str,
        right: &str,
        summary: &'static str,
    ) -> Route<'_> {
        let words = path.split(['/', '{', '}', '-', '.']).filter(|word| !word.is_empty() && *word != "v1");
        let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
        let id = method.to_lowercase() + &words.map(capital).collect::<String>();
        let of_path = |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } });
        let parameters: Vec<Value> =
            path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).map(of_path).collect();
        let error = schema::<weir_api::Error>(&mut self.written);
        let operation = json!({
            "operationId": id,
            "summary": summary,
            "x-weir-right": right,
            "parameters": parameters,
            "responses": { "default": {
                "description": "The request is refused, or failed.",
                "content": { "application/json": { "schema": error } },
            } },
        });
        Route { api: self, path, method: method.to_lowercase(), operation }
    }

    /// The whole description.
    pub(crate) fn finish(self) -> Value {
        let Builder { mut read, mut written, mut paths } = self;
        let (mut of_read, mut schemas) = (read.take_definitions(true), written.take_definitions(true));
        let apart = apart(&of_read, &schemas);
        of_read.values_mut().chain(schemas.values_mut()).for_each(plain);
        for operation in paths.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut) {
            if let Some(body) = operation.get_mut("requestBody") {
                rename(body, &apart);
            }
        }
        for (name, mut schema) in std::mem::take(&mut of_read) {
            rename(&mut schema, &apart);
            let name = if apart.contains(&name) { name + READ } else { name };
            schemas.insert(name, schema);
        }
        let mut document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "weir",
                "version": "1",
                "summary": "Quality of service for fog and edge nodes.",
                "description": "The agent answers on its unix socket, which knows its callers from the kernel, and over TCP \
                    with tokens. The routes `/metrics`, `/healthz` and `/readyz` need no token. Rates are bit/s on the wire, sizes are bytes. \
                    Times are milliseconds since the epoch unless the name says otherwise. `x-weir-right` is the \
                    right that the caller needs. A later agent may add fields and words.",
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "security": [{ "token": [] }, {}],
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": { "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `weir token add`, over TCP only. Its scope is read, party, operate or admin.",
                } },
            },
        });
        words(&mut document);
        let schemas = document["components"]["schemas"].as_object().cloned().unwrap_or_default();
        nullable(&mut document, &schemas);
        widths(&mut document);
        document
    }
}

/// Makes one list of words of a choice between single words, whose meanings go to the description. Generators make a type
/// of each member of a choice, and take two texts for a contradiction.
fn words(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let choice = map.get("oneOf").and_then(Value::as_array);
            let choice = choice.and_then(|all| all.iter().map(words_of).collect::<Option<Vec<_>>>());
            if let Some(all) = choice {
                let meanings: Vec<&str> =
                    all.iter().map(|(_, about)| &**about).filter(|a| !a.is_empty()).collect();
                let about = map.get("description").and_then(Value::as_str).unwrap_or_default();
                let about = format!("{about} {}", meanings.join(" ")).trim().to_owned();
                map.remove("oneOf");
                map.insert("type".to_owned(), json!("string"));
                map.insert("enum".to_owned(), all.into_iter().flat_map(|(words, _)| words).collect());
                map.insert("description".to_owned(), json!(about));
            }
            map.values_mut().for_each(words);
        }
        Value::Array(list) => list.iter_mut().for_each(words),
        _ => {}
    }
}

/// The words of a member of a choice, and what they mean. `None` if it is more than words.
fn words_of(member: &Value) -> Option<(Vec<Value>, String)> {
    let is_text = |word: &Value| word.is_string();
    let words = match (member.get("const"), member.get("enum").and_then(Value::as_array)) {
        (Some(word), _) => vec![word.clone()],
        (None, Some(words)) => words.clone(),
        (None, None) => return None,
    };
    let about = member.get("description").and_then(Value::as_str);
    let about = about.map_or(String::new(), |about| {
        let names: Vec<String> =
            words.iter().map(|word| format!("`{}`", word.as_str().unwrap_or_default())).collect();
        format!("{}: {about}", names.join(", "))
    });
    words.iter().all(is_text).then_some((words, about))
}

/// Writes an integer or nothing as one type. Generators forget the nothing beside a reference.
fn nullable(value: &mut Value, schemas: &Map<String, Value>) {
    match value {
        Value::Object(map) => {
            let found = match map.get("anyOf").and_then(Value::as_array).map(Vec::as_slice) {
                Some([one, null]) if null["type"] == "null" => {
                    let name = one["$ref"].as_str().and_then(|text| text.strip_prefix(SCHEMAS));
                    name.and_then(|name| schemas.get(name))
                        .filter(|schema| schema["type"] == "integer")
                        .cloned()
                }
                _ => None,
            };
            if let Some(Value::Object(mut schema)) = found {
                map.remove("anyOf");
                schema.insert("type".to_owned(), json!(["integer", "null"]));
                for (key, inner) in schema {
                    map.entry(key).or_insert(inner);
                }
            }
            map.values_mut().for_each(|inner| nullable(inner, schemas));
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| nullable(inner, schemas)),
        _ => {}
    }
}

/// Says of each integer the width that a client needs. OpenAPI's registry of formats has `int32` and `int64`. Generators
/// take 32 bits for an integer without one, and for one of Rust's formats.
fn widths(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let is_integer = match map.get("type") {
                Some(Value::String(kind)) => kind == "integer",
                Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "integer"),
                _ => false,
            };
            let is_narrow =
                matches!(map.get("format").and_then(Value::as_str), Some("uint8" | "uint16" | "int32"));
            if is_integer {
                map.insert("format".to_owned(), json!(if is_narrow { "int32" } else { "int64" }));
            }
            map.values_mut().for_each(widths);
        }
        Value::Array(list) => list.iter_mut().for_each(widths),
        _ => {}
    }
}

/// Takes links to Rust's types out of descriptions.
fn plain(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                match inner {
                    Value::String(text) if key == "description" => {
                        *text = text.replace("[`", "`").replace("`]", "`").replace('\n', " ");
                    }
                    _ => plain(inner),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(plain),
        _ => {}
    }
}

/// The names of schemas that are not the same in both directions, or refer to such a one.
fn apart(read: &Map<String, Value>, written: &Map<String, Value>) -> BTreeSet<String> {
    let differs =
        |(name, schema): &(&String, &Value)| written.get(*name).is_some_and(|other| other != *schema);
    let mut apart: BTreeSet<String> = read.iter().filter(differs).map(|(name, _)| name.clone()).collect();
    loop {
        let refers = |(name, schema): &(&String, &Value)| {
            written.contains_key(*name)
                && apart.iter().any(|other| schema.to_string().contains(&format!("\"{SCHEMAS}{other}\"")))
        };
        let more: Vec<String> = read
            .iter()
            .filter(refers)
            .map(|(name, _)| name.clone())
            .filter(|name| !apart.contains(name))
            .collect();
        if more.is_empty() {
            return apart;
        }
        apart.extend(more);
    }
}

/// Has references to these schemas mean those that are read.
fn rename(value: &mut Value, apart: &BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                match inner {
                    Value::String(text) if key == "$ref" => {
                        if text.strip_prefix(SCHEMAS).is_some_and(|name| apart.contains(name)) {
                            text.push_str(READ);
                        }
                    }
                    _ => rename(inner, apart),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| rename(inner, apart)),
        _ => {}
    }
}

impl Route<'_> {
    /// Adds a parameter of the query.
    pub(crate) fn query(mut self, name: &str, is_required: bool, schema: Value, what: &str) -> Self {
        let parameter = json!({ "name": name, "in": "query", "required": is_required, "schema": schema, "description": what });
        self.operation["parameters"].as_array_mut().expect("it is a list").push(parameter);
        self
    }

    /// Adds an optional parameter of the query, of this type.
    pub(crate) fn query_of<T: JsonSchema>(self, name: &str, what: &str) -> Self {
        let schema = schema::<T>(&mut self.api.written);
        self.query(name, false, schema, what)
    }

    /// Text of the answer has values of this type.
    pub(crate) fn mentions<T: JsonSchema>(self) -> Self {
        let _ = schema::<T>(&mut self.api.written);
        self
    }

    /// The body is JSON of this type.
    pub(crate) fn takes<T: JsonSchema>(mut self) -> Self {
        let schema = schema::<T>(&mut self.api.read);
        self.operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        self
    }

    /// The body is a document in one of the languages of agreements.
    pub(crate) fn takes_document<T: JsonSchema>(self) -> Self {
        let mut route = self.takes::<T>();
        let content = &mut route.operation["requestBody"]["content"];
        content["application/xml"] = json!({ "schema": { "type": "string" } });
        content["application/toml"] = json!({ "schema": { "type": "string" } });
        route
    }

    /// The answer is JSON of this type, with status 200.
    pub(crate) fn answers<T: JsonSchema>(self) -> Self {
        self.answers_with::<T>(200, "The answer.")
    }

    /// The answer is JSON of this type, with that status.
    pub(crate) fn answers_with<T: JsonSchema>(mut self, status: u16, what: &str) -> Self {
        let schema = schema::<T>(&mut self.api.written);
        self.operation["responses"][status.to_string()] =
            json!({ "description": what, "content": { "application/json": { "schema": schema } } });
        self
    }

    /// The answer is a document in one of the languages of agreements, with that status.
    pub(crate) fn answers_document<T: JsonSchema>(self, status: u16, what: &str) -> Self {
        let mut route = self.answers_with::<T>(status, what);
        let content = &mut route.operation["responses"][status.to_string()]["content"];
        content["application/xml"] = json!({ "schema": { "type": "string" } });
        content["application/toml"] = json!({ "schema": { "type": "string" } });
        route
    }

    /// The answer is text of this media type.
    pub(crate) fn answers_text(mut self, media: &str, what: &str) -> Self {
        let response = &mut self.operation["responses"]["200"];
        response["description"] = json!(what);
        response["content"][media] = json!({ "schema": { "type": "string" } });
        self
    }

    /// Refusals are faults of agreements in the language of the request, or those of any route.
    pub(crate) fn refuses_by_fault(mut self) -> Self {
        let fault = schema::<weir_agree::Fault>(&mut self.api.written);
        let schema = json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["fault"],
            "properties": { "fault": fault },
        });
        let content = &mut self.operation["responses"]["default"]["content"];
        let of_any_route = content["application/json"]["schema"].take();
        content["application/json"]["schema"] = json!({ "anyOf": [schema, of_any_route] });
        for language in ["application/xml", "application/toml"] {
            content[language] = json!({ "schema": { "type": "string" } });
        }
        self
    }

    /// The variable part of the path is a number.
    pub(crate) fn numbered(mut self) -> Self {
        self.operation["parameters"][0]["schema"] = json!({ "type": "integer", "minimum": 0 });
        self
    }

    /// Ends the route.
    pub(crate) fn end(self) {
        let Route { api, path, method, operation } = self;
        let all = api.paths.entry(path).or_insert_with(|| json!({}));
        let old = all.as_object_mut().expect("it is a map").insert(method, operation);
        assert!(old.is_none(), "{path} is described twice");
    }
}
