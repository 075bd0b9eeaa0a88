//! From text to elements with namespaces, within limits.

use quick_xml::{
    NsReader, XmlVersion,
    events::{BytesRef, BytesStart, Event},
    name::ResolveResult,
};

use super::{QOS, WEIR, WSA, WSAG, XS};
use crate::{Fault, FaultCode, Place, position::position};

/// Deeper than any document that is understood, by twice.
const MAX_DEPTH: usize = 24;
/// More than any element that is understood has, namespaces included.
const MAX_ATTRIBUTES: usize = 24;
/// The longest attribute or text, in bytes: above a name of 256 bytes that are all escaped.
const MAX_TEXT: usize = 2_048;

const XSI: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// Namespace and name.
pub(super) type Q = (&'static str, &'static str);

#[derive(Debug)]
pub(super) struct Element {
    pub(super) space: String,
    pub(super) name: String,
    attributes: Vec<Attribute>,
    pub(super) children: Vec<Element>,
    text: String,
    /// Byte of the text where it begins.
    at: usize,
}

#[derive(Debug)]
struct Attribute {
    space: String,
    name: String,
    value: String,
}

/// The text of a document, for the places of faults.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a>(pub(super) &'a str);

/// `wsag:Name` for what the crate's documentation and its writer call so.
pub(super) fn shown(space: &str, name: &str) -> String {
    let prefix = match space {
        WSAG => "wsag:",
        QOS => "qos:",
        WEIR => "weir:",
        XS => "xs:",
        WSA => "wsa:",
        "" => "",
        other => return format!("{{{}}}{}", cut(other), cut(name)),
    };
    format!("{prefix}{}", cut(name))
}

/// The beginning of foreign text.
fn cut(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

impl Reading<'_> {
    /// A fault at a byte of the text.
    fn fault(self, code: FaultCode, what: String, at: usize, why: &str) -> Fault {
        let (line, column) = position(self.0, at);
        let message = format!("cannot read {what} at line {line}, column {column} of the xml: {why}");
        let at = Some(Box::new(Place { what, line: Some(line), column: Some(column) }));
        Fault { at, ..Fault::new(code, message) }
    }

    /// A fault in an element.
    pub(super) fn refuse(self, code: FaultCode, element: &Element, why: &str) -> Fault {
        self.fault(code, shown(&element.space, &element.name), element.at, why)
    }

    /// The same, with what would be accepted there.
    pub(super) fn refuse_for(
        self,
        code: FaultCode,
        element: &Element,
        why: &str,
        accepted: impl IntoIterator<Item = String>,
    ) -> Fault {
        let accepted: Vec<_> = accepted.into_iter().collect();
        let list = if accepted.is_empty() { "nothing".to_owned() } else { accepted.join(", ") };
        let why = format!("{why}; accepted: {list}");
        Fault { accepted, ..self.refuse(code, element, &why) }
    }

    pub(super) fn expect_root(self, root: &Element, name: &'static str) -> Result<(), Fault> {
        if (root.space.as_str(), root.name.as_str()) == (WSAG, name) {
            return Ok(());
        }
        let known = [WSAG, QOS, WEIR].contains(&root.space.as_str());
        let code = if known { FaultCode::WrongDocument } else { FaultCode::UnknownNamespace };
        let accepted = format!("{} with wsag = {WSAG}", shown(WSAG, name));
        Err(self.refuse_for(code, root, "another document is expected", [accepted]))
    }

    /// Tests that an element has no attributes and no children but these, each child once but
    /// those of `many`, and no text.
    pub(super) fn check(
        self,
        element: &Element,
        attributes: &[Q],
        children: &[Q],
        many: &[Q],
    ) -> Result<(), Fault> {
        self.check_attributes(element, attributes)?;
        if let Some(text) = element.text.split_whitespace().next() {
            let why = format!("it holds elements, not the text `{}`", cut(text));
            return Err(self.refuse(FaultCode::BadValue, element, &why));
        }
        for (i, child) in element.children.iter().enumerate() {
            let name = (child.space.as_str(), child.name.as_str());
            if many.contains(&name) {
                continue;
            }
            if !children.contains(&name) {
                let known = [WSAG, QOS, WEIR, WSA, XS].contains(&name.0);
                let code = if known { FaultCode::UnknownElement } else { FaultCode::UnknownNamespace };
                let why = format!("not known in {}", shown(&element.space, &element.name));
                let accepted = children.iter().chain(many).map(|(space, name)| shown(space, name));
                return Err(self.refuse_for(code, child, &why, accepted));
            }
            let twice = element.children[..i].iter().any(|c| (c.space.as_str(), c.name.as_str()) == name);
            if twice {
                return Err(self.refuse(FaultCode::Repeated, child, "it is there already"));
            }
        }
        Ok(())
    }

    fn check_attributes(self, element: &Element, attributes: &[Q]) -> Result<(), Fault> {
        for attribute in &element.attributes {
            let name = (attribute.space.as_str(), attribute.name.as_str());
            let passed_over = attribute.space == XSI && attribute.name.ends_with("chemaLocation");
            if !attributes.contains(&name) && !passed_over {
                let known = ["", WSAG, QOS, WEIR].contains(&name.0);
                let code = if known { FaultCode::UnknownAttribute } else { FaultCode::UnknownNamespace };
                let why = format!("its attribute {} is not known", shown(name.0, name.1));
                let accepted = attributes.iter().map(|(space, name)| shown(space, name));
                return Err(self.refuse_for(code, element, &why, accepted));
            }
        }
        Ok(())
    }

    /// The child of that name, if there is one.
    pub(super) fn find(self, element: &Element, (space, name): Q) -> Option<&Element> {
        element.children.iter().find(|child| child.space == space && child.name == name)
    }

    /// The child of that name.
    pub(super) fn child(self, element: &Element, name: Q) -> Result<&Element, Fault> {
        self.find(element, name).ok_or_else(|| {
            let missing = shown(name.0, name.1);
            self.refuse_for(FaultCode::Missing, element, &format!("it has no {missing}"), [missing])
        })
    }

    /// An attribute, if it is there.
    pub(super) fn attribute(self, element: &Element, (space, name): Q) -> Option<&str> {
        let found = element.attributes.iter().find(|a| a.space == space && a.name == name);
        found.map(|attribute| attribute.value.as_str())
    }

    /// An attribute that has to be there.
    pub(super) fn required(self, element: &Element, name: Q) -> Result<&str, Fault> {
        self.attribute(element, name).ok_or_else(|| {
            let missing = shown(name.0, name.1);
            self.refuse_for(FaultCode::Missing, element, &format!("it has no attribute {missing}"), [missing])
        })
    }

    /// The text of an element with these attributes at most, without the space around it.
    pub(super) fn text<'e>(self, element: &'e Element, attributes: &[Q]) -> Result<&'e str, Fault> {
        self.check_attributes(element, attributes)?;
        match element.children.first() {
            None => Ok(element.text.trim_matches([' ', '\t', '\r', '\n'])),
            Some(child) => {
                let why = format!("{} holds a text", shown(&element.space, &element.name));
                Err(self.refuse(FaultCode::UnknownElement, child, &why))
            }
        }
    }
}

/// Reads a whole document.
pub(super) fn parse(reading: Reading<'_>) -> Result<Element, Fault> {
    let mut xml = NsReader::from_str(reading.0);
    xml.config_mut().expand_empty_elements = true;
    let mut open: Vec<Element> = Vec::new();
    let mut root = None;
    loop {
        let at = usize::try_from(xml.buffer_position()).unwrap_or(usize::MAX);
        let document = || "the document".to_owned();
        let malformed = |why: &str| reading.fault(FaultCode::Malformed, document(), at, why);
        let event = match xml.read_event() {
            Ok(event) => event,
            Err(error) => {
                let at = usize::try_from(xml.error_position()).unwrap_or(at);
                return Err(reading.fault(FaultCode::Malformed, document(), at, &error.to_string()));
            }
        };
        match event {
            Event::Start(start) => {
                if root.is_some() {
                    return Err(malformed("there is more behind its end"));
                }
                if open.len() == MAX_DEPTH {
                    let why = format!("elements are nested deeper than {MAX_DEPTH}");
                    return Err(reading.fault(FaultCode::TooDeep, document(), at, &why));
                }
                open.push(element(reading, &xml, &start, at)?);
            }
            Event::End(_) => {
                let Some(closed) = open.pop() else { return Err(malformed("an end without a start")) };
                match open.last_mut() {
                    Some(parent) => parent.children.push(closed),
                    None => root = Some(closed),
                }
            }
            Event::Text(text) => add(reading, &mut open, &text.xml10_content(), at)?,
            Event::CData(text) => add(reading, &mut open, &text.xml10_content(), at)?,
            Event::GeneralRef(reference) => {
                let text = resolve(reading, &reference, at)?.to_string();
                add(reading, &mut open, &text, at)?;
            }
            Event::DocType(_) => {
                let why = "document type definitions are not read (leave out <!DOCTYPE ...>)";
                return Err(reading.fault(FaultCode::Dtd, document(), at, why));
            }
            Event::PI(_) => return Err(malformed("processing instructions are not read")),
            Event::Decl(declaration) => {
                let encoding = declaration.encoding().transpose().ok().flatten();
                if at != 0 || encoding.is_some_and(|name| !name.eq_ignore_ascii_case("utf-8")) {
                    return Err(malformed("a declaration stands at the very beginning and says UTF-8"));
                }
            }
            Event::Comment(_) => {}
            Event::Empty(_) => return Err(malformed("an empty element that was not expanded")),
            Event::Eof => {
                return match (open.last(), root) {
                    (None, Some(root)) => Ok(root),
                    (Some(open), _) => Err(reading.refuse(FaultCode::Malformed, open, "it has no end")),
                    (None, None) => Err(malformed("there is no element")),
                };
            }
        }
    }
}

fn element(
    reading: Reading<'_>,
    xml: &NsReader<&[u8]>,
    start: &BytesStart<'_>,
    at: usize,
) -> Result<Element, Fault> {
    let written = cut(start.name().as_ref());
    let fault = |code, why: &str| reading.fault(code, written.clone(), at, why);
    let space = |resolved: ResolveResult<'_>| match resolved {
        ResolveResult::Unbound => Ok(String::new()),
        ResolveResult::Bound(space) => Ok(space.as_ref().to_owned()),
        ResolveResult::Unknown(prefix) => {
            let why = format!("the prefix `{}` stands for no namespace (declare xmlns:{0})", cut(&prefix));
            Err(fault(FaultCode::UnknownNamespace, &why))
        }
    };
    let (resolved, name) = xml.resolver().resolve_element(start.name());
    let (space_of_element, name) = (space(resolved)?, name.as_ref().to_owned());
    let mut attributes = Vec::new();
    for (i, attribute) in start.attributes().enumerate() {
        if i == MAX_ATTRIBUTES {
            let why = format!("it has more than {MAX_ATTRIBUTES} attributes");
            return Err(fault(FaultCode::TooManyAttributes, &why));
        }
        let attribute = attribute.map_err(|error| fault(FaultCode::Malformed, &error.to_string()))?;
        let name = cut(attribute.key.as_ref());
        if attribute.value.len() > MAX_TEXT {
            let bytes = attribute.value.len();
            let why = format!("its attribute {name} has {bytes} bytes, the longest that is read {MAX_TEXT}");
            return Err(fault(FaultCode::TooLong, &why));
        }
        if attribute.key.as_namespace_binding().is_some() {
            continue;
        }
        let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|error| {
            let why = format!("its attribute {name}: {error} (only &lt; &gt; &amp; &quot; &apos; are known)");
            fault(FaultCode::Entity, &why)
        })?;
        let (resolved, local) = xml.resolver().resolve_attribute(attribute.key);
        let (space, name) = (space(resolved)?, local.as_ref().to_owned());
        if attributes.iter().any(|a: &Attribute| a.space == space && a.name == name) {
            return Err(fault(FaultCode::Repeated, &format!("its attribute {} is there twice", cut(&name))));
        }
        attributes.push(Attribute { space, name, value: value.into_owned() });
    }
    let (children, text) = (Vec::new(), String::new());
    Ok(Element { space: space_of_element, name, attributes, children, text, at })
}

/// Adds to the text of the element that is open.
fn add(reading: Reading<'_>, open: &mut [Element], text: &str, at: usize) -> Result<(), Fault> {
    let Some(element) = open.last_mut() else {
        if text.trim().is_empty() {
            return Ok(());
        }
        let why = "text stands outside of its element";
        return Err(reading.fault(FaultCode::Malformed, "the document".into(), at, why));
    };
    // White space that only lays the document out is no text.
    if element.text.trim().is_empty() {
        element.text.clear();
    }
    element.text.push_str(text);
    if element.text.len() > MAX_TEXT && !element.text.trim().is_empty() {
        let why = format!("its text has more than {MAX_TEXT} bytes");
        return Err(reading.refuse(FaultCode::TooLong, element, &why));
    }
    Ok(())
}

fn resolve(reading: Reading<'_>, reference: &BytesRef<'_>, at: usize) -> Result<char, Fault> {
    let known = match reference.resolve_char_ref() {
        Ok(Some(char)) => Some(char),
        Err(_) => None,
        Ok(None) => match reference.as_ref() {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => None,
        },
    };
    known.ok_or_else(|| {
        let what = format!("the entity &{};", cut(reference.as_ref()));
        let why = "only &lt; &gt; &amp; &quot; &apos; and characters by number are known";
        reading.fault(FaultCode::Entity, what, at, why)
    })
}
