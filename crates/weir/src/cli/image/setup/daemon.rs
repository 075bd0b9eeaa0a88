//! Docker's `daemon.json`.

use serde_json::Value;

const KEY: &str = "registry-mirrors";

fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_slice(text.as_bytes()).map_err(|e| format!("it is not JSON: {e}"))
}

fn write(json: &Value) -> Result<String, String> {
    serde_json::to_string_pretty(json).map(|text| text + "\n").map_err(|e| e.to_string())
}

/// The text with a mirror before all others.
pub(super) fn add(before: Option<&str>, url: &str) -> Result<String, String> {
    let text = before.filter(|text| !text.trim().is_empty()).unwrap_or("{}");
    let mut json = parse(text)?;
    let object = json.as_object_mut().ok_or("it is not a JSON object")?;
    let mirrors = object.entry(KEY).or_insert_with(|| Value::Array(Vec::new()));
    let mirrors = mirrors.as_array_mut().ok_or("its registry-mirrors is not a list")?;
    let url = Value::String(url.to_owned());
    if mirrors.contains(&url) {
        return Ok(text.to_owned());
    }
    mirrors.insert(0, url);
    write(&json)
}

/// A text that was changed since weir wrote `after`, without weir's mirror. `before` is the text before weir.
pub(super) fn take(now: &str, before: Option<&str>, after: &str, url: &str) -> Result<String, String> {
    let mut json = parse(now)?;
    if let (Some(before), Ok(after)) = (before, parse(after))
        && json == after
    {
        return Ok(before.to_owned());
    }
    if let Some(object) = json.as_object_mut()
        && let Some(mirrors) = object.get_mut(KEY).and_then(Value::as_array_mut)
    {
        let many = mirrors.len();
        mirrors.retain(|mirror| mirror.as_str() != Some(url));
        if mirrors.len() == many {
            return Ok(now.to_owned());
        }
        if mirrors.is_empty() {
            object.remove(KEY);
        }
        return write(&json);
    }
    Ok(now.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://127.0.0.1:5050";

    #[test]
    fn mirror_comes_first_and_goes_without_another_change() {
        let before = "{ \"registry-mirrors\": [\"https://a.example\"],\n\"debug\": true }";
        let after = add(Some(before), URL).unwrap();
        assert_eq!(
            parse(&after).unwrap()[KEY],
            serde_json::json!(["http://127.0.0.1:5050", "https://a.example"])
        );
        assert_eq!(add(Some(&after), URL).unwrap(), after);
        // Only spaces differ.
        assert_eq!(take(&after.replace("  ", " "), Some(before), &after, URL).unwrap(), before);
        // The operator has taken the mirror out.
        assert_eq!(take(before, Some("{}"), &after, URL).unwrap(), before);
        let both =
            take("{\"registry-mirrors\": [\"http://127.0.0.1:5050\"], \"debug\": 1}", None, &after, URL);
        assert_eq!(parse(&both.unwrap()).unwrap(), serde_json::json!({ "debug": 1 }));
        for bad in ["[]", "{", "{\"registry-mirrors\": 1}"] {
            assert!(add(Some(bad), URL).is_err(), "{bad}");
        }
    }
}
