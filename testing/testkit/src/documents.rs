//! Parts of Markdown documents that a test generates. `WEIR_BLESS=1` writes them.

use std::{
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
};

/// Tests on several threads may write parts of one document.
static WRITING: Mutex<()> = Mutex::new(());

/// Compares the part of the document `path` between `<!-- begin NAME -->` and `<!-- end NAME -->` with `wanted`.
/// With `WEIR_BLESS=1` the part is written first. `path` begins at the root of the repository.
///
/// # Panics
/// The document has no such part, or the part differs. The message names the first line that differs.
pub fn assert_generated(path: &str, name: &str, wanted: &str) {
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n"));
    let parts = text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?)));
    let Some((before, (now, after))) = parts else { panic!("{path}: there is no {begin}...{end}") };
    let wanted = format!("\n{}\n\n", wanted.trim_matches('\n'));
    if std::env::var_os("WEIR_BLESS").is_some() {
        fs::write(&file, format!("{before}{begin}{wanted}{end}{after}")).unwrap();
        return;
    }
    let differs = now.lines().zip(wanted.lines()).find(|(now, wanted)| now != wanted);
    assert_eq!(differs, None, "{path}, part {name}: (document, program). If it is right: WEIR_BLESS=1");
    assert_eq!(now, wanted, "{path}, part {name}. If it is right: WEIR_BLESS=1");
}
