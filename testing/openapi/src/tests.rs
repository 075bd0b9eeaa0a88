use std::path::Path;

use serde_json::Value;

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
}

#[test]
fn the_checked_in_description_is_that_of_the_types() {
    let text = super::text();
    if std::env::var_os("WEIR_BLESS").is_some() {
        std::fs::write(path(), &text).unwrap();
    }
    let stored = std::fs::read_to_string(path()).unwrap();
    assert!(
        stored == text,
        "docs/openapi.json is not up to date: WEIR_BLESS=1 cargo test -p weir-openapi writes it"
    );
}

/// All references of a value.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("$ref").and_then(Value::as_str));
            map.values().for_each(|inner| references(inner, found));
        }
        Value::Array(list) => list.iter().for_each(|inner| references(inner, found)),
        _ => {}
    }
}

#[test]
fn each_reference_names_a_schema_and_each_schema_is_named() {
    let document = super::document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 100, "{}", found.len());
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for reference in &found {
        let name = reference.strip_prefix("#/components/schemas/").unwrap_or_else(|| panic!("{reference}"));
        assert!(schemas.contains_key(name), "{reference}");
    }
    let is_named = |name: &str| found.iter().any(|reference| reference.ends_with(&format!("/{name}")));
    let unnamed: Vec<&String> = schemas.keys().filter(|name| !is_named(name)).collect();
    assert_eq!(unnamed, ["Event"], "the event stream is text");
}

#[test]
fn operations_have_names_of_their_own_and_read_types_differ() {
    let document = super::document();
    let paths = document["paths"].as_object().unwrap();
    let ids: Vec<&str> = paths
        .values()
        .flat_map(|all| all.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    let different: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!((ids.len(), different.len()), (65, 65));
    let schemas = &document["components"]["schemas"];
    assert_eq!(
        (&schemas["BitRate"]["type"], &schemas["BitRate"]["format"]),
        (&"integer".into(), &"int64".into())
    );
    assert_eq!(schemas["Class"]["properties"]["drops"]["format"], "int64");
    assert!(schemas["BitRateRead"]["anyOf"].is_array(), "a rate is read as text too");
    let demand = &schemas["Class"]["properties"]["demand"];
    assert_eq!((&demand["type"][0], &demand["type"][1]), (&"integer".into(), &"null".into()));
    let activity = &schemas["Activity"];
    assert_eq!(activity["enum"].as_array().unwrap().len(), 3, "{activity}");
    assert!(activity["description"].as_str().unwrap().contains("`idle`: "), "{activity}");
    let max = &schemas["PolicyChange"]["properties"]["max"];
    assert!(max.to_string().contains("BitRateRead"), "{max}");
}
