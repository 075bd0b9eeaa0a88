//! JSON schemas of units, as they are written and read.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{BitRate, Bytes};

/// A number is written. A number or text is read.
fn number_or_text(generator: &SchemaGenerator, number: &str, text: &str) -> Schema {
    let of_number = json_schema!({ "type": "integer", "minimum": 0, "description": number });
    if generator.contract().is_serialize() {
        return of_number;
    }
    json_schema!({ "anyOf": [of_number, { "type": "string", "description": text }] })
}

impl JsonSchema for BitRate {
    fn schema_name() -> Cow<'static, str> {
        "BitRate".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        number_or_text(generator, "bit/s on the wire", "a rate as tc writes it: 20mbit")
    }
}

impl JsonSchema for Bytes {
    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        number_or_text(generator, "bytes", "a size with its unit: 20GB or 20GiB")
    }
}

#[cfg(feature = "calendar")]
impl JsonSchema for crate::Utc {
    fn schema_name() -> Cow<'static, str> {
        "Utc".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}
