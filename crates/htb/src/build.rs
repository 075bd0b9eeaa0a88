use weir_units::Instant;

use crate::{ClassError, ClassId, Htb, Limits, Params, Warning};

/// One line of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassSpec {
    /// Its number.
    pub id: ClassId,
    /// The class above it; `None` for a root.
    pub parent: Option<ClassId>,
    /// Its parameters.
    pub params: Params,
}

impl Htb {
    /// A tree from a configuration, whose lines may be in any order, and what to warn about, once
    /// all classes are there.
    ///
    /// # Errors
    /// As [`Htb::add`]; and classes that are their own ancestors.
    ///
    /// ```
    /// use weir_htb::{ClassError, ClassId, ClassSpec, Htb, Limits, Params};
    /// use weir_units::{BitRate, Instant};
    ///
    /// let spec = |id, parent, mbit| ClassSpec {
    ///     id: ClassId(id),
    ///     parent: Some(ClassId(parent)),
    ///     params: Params::new(BitRate::mbit(mbit)),
    /// };
    /// let error = Htb::build(Limits::default(), Instant::default(), &[spec(1, 2, 5), spec(2, 1, 5)]);
    /// assert_eq!(error.unwrap_err(), ClassError::Cycle { class: ClassId(1) });
    /// ```
    pub fn build(
        limits: Limits,
        now: Instant,
        specs: &[ClassSpec],
    ) -> Result<(Htb, Vec<Warning>), ClassError> {
        let mut htb = Htb::new(limits, now);
        let classes = htb.limits.classes;
        let mut by_id = vec![None; classes as usize];
        for (line, spec) in specs.iter().enumerate() {
            let class = spec.id;
            let known =
                by_id.get_mut(class.0 as usize).ok_or(ClassError::TooManyClasses { class, classes })?;
            if known.replace(line).is_some() {
                return Err(ClassError::Exists { class });
            }
        }
        // From each class up to one that is there, then down again.
        let mut on_path = vec![false; specs.len()];
        let mut path = Vec::new();
        for mut line in 0..specs.len() {
            loop {
                let ClassSpec { id: class, parent, .. } = specs[line];
                if htb.exists(class) {
                    break;
                }
                if std::mem::replace(&mut on_path[line], true) {
                    return Err(ClassError::Cycle { class });
                }
                path.push(line);
                let Some(parent) = parent else { break };
                line = by_id
                    .get(parent.0 as usize)
                    .copied()
                    .flatten()
                    .ok_or(ClassError::UnknownParent { class, parent })?;
            }
            while let Some(line) = path.pop() {
                let ClassSpec { id, parent, params } = specs[line];
                htb.add(id, parent, params)?;
            }
        }
        let mut warnings = Vec::new();
        for spec in specs {
            for warning in htb.warnings(spec.id).iter() {
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
        }
        Ok((htb, warnings))
    }
}
