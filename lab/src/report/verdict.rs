use std::fmt::Write as _;

use super::figure::{Figure, Rule};

/// Whether each figure with a rule meets it; `None` if no figure has a rule.
pub(crate) fn pass(figures: &[Figure]) -> Option<bool> {
    figures.iter().filter_map(|figure| figure.pass).reduce(|all, one| all && one)
}

/// The verdict: pass, or the figures that fall short and by how much.
pub(crate) fn of(scenario: &str, pass: Option<bool>, figures: &[Figure]) -> String {
    let judged = figures.iter().filter(|f| f.pass.is_some()).count();
    if pass != Some(false) {
        let worst = figures.iter().find(|f| f.name.starts_with("largest error of a share, weir"));
        let worst = worst.map_or(String::new(), |f| format!("; largest error of a share {:.1} %", f.value));
        return format!("{scenario}: pass, {judged} figures{worst}");
    }
    let mut text = String::new();
    let failed: Vec<_> = figures.iter().filter(|f| f.pass == Some(false)).collect();
    let _ = write!(text, "{scenario}: falls short in {} of {judged} figures", failed.len());
    for figure in failed {
        let want = figure.want.unwrap_or(f64::NAN);
        let rule = match figure.rule {
            Some(Rule::Within(fraction)) => format!("{want:.2} +- {:.1} %", fraction * 100.0),
            Some(Rule::AtLeast) => format!("at least {want:.3}"),
            Some(Rule::AtMost) => format!("at most {want:.3}"),
            None => String::new(),
        };
        let _ = write!(text, "\n  {}: {:.3} {}, wanted {rule}", figure.name, figure.value, figure.unit);
    }
    text
}
