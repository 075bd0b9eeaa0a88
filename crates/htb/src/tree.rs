//! Classes come, change and go while packets flow.

use weir_units::{BitRate, Bytes};

use crate::{
    ClassError, ClassId, Htb, Packet, Params, Warning, Warnings,
    class::{Class, ClassConfig, LeafQueue, NONE},
    htb::VACANT,
    schedule::Feed,
};

/// A packet of Ethernet's usual size, in bytes.
const USUAL: u32 = 1_514;

impl Htb {
    /// Adds a leaf below `parent`, or a root. Its buckets are full.
    ///
    /// The parent, if it was a leaf, is one no longer: its buckets become full, and its own
    /// priority, quantum and limit wait until it is a leaf again.
    ///
    /// # Errors
    /// The number is taken or too large, there is no such parent, packets wait in it, it is too
    /// far from the root, or a parameter is out of bounds. Nothing has changed then.
    pub fn add(
        &mut self,
        id: ClassId,
        parent: Option<ClassId>,
        params: Params,
    ) -> Result<Warnings, ClassError> {
        let class = id;
        if id.0 >= self.limits.classes {
            return Err(ClassError::TooManyClasses { class, classes: self.limits.classes });
        }
        if self.exists(id) {
            return Err(ClassError::Exists { class });
        }
        check(id, &params)?;
        let mut above = 0;
        if let Some(parent) = parent {
            if !self.exists(parent) {
                return Err(ClassError::UnknownParent { class, parent });
            }
            above = self.config[parent.0 as usize].above + 1;
            if above >= self.limits.depth {
                return Err(ClassError::TooDeep { class, depth: self.limits.depth });
            }
            match self.class[parent.0 as usize].backlog {
                0 => {}
                packets => return Err(ClassError::HasPackets { class: parent, packets }),
            }
            self.adopt(parent.0 as usize, params.rate);
            self.unplaced = true;
        }
        let i = id.0 as usize;
        self.class[i] = Class::new(&params, parent.map_or(NONE, |parent| parent.0));
        self.class[i].fill_buckets(self.wheel.now());
        self.config[i] = ClassConfig { params, children: 0, assured: 0, above, giants: 0 };
        self.leaf_queue[i] = leaf_queue(&params, 0);
        self.turns_of(i).fill(0);
        self.feeds_of(i).fill(Feed::default());
        Ok(self.warnings(id))
    }

    /// Changes a class; what is in its buckets stays, as time. The priority holds at once, also for
    /// packets that wait; packets beyond a lower limit stay.
    ///
    /// # Errors
    /// There is no such class, or a parameter is out of bounds. Nothing has changed then.
    pub fn change(&mut self, id: ClassId, params: Params) -> Result<Warnings, ClassError> {
        if !self.exists(id) {
            return Err(ClassError::Unknown { class: id });
        }
        check(id, &params)?;
        if self.unplaced {
            self.lay_out();
        }
        let i = id.0 as usize;
        if self.class[i].level == 0 && self.class[i].activity != 0 {
            self.stop(id.0);
            self.class[i].prio = params.prio;
            self.class[i].activity = 1 << params.prio;
            self.join(id.0, params.prio.into());
        }
        let was = std::mem::replace(&mut self.config[i].params, params);
        let class = &mut self.class[i];
        class.prio = params.prio;
        class.set(&params);
        let parent = class.parent;
        self.leaf_queue[i] =
            LeafQueue { tail: self.leaf_queue[i].tail, ..leaf_queue(&params, self.leaf_queue[i].drops) };
        if let Some(parent) = self.config.get_mut(parent as usize) {
            parent.assured = parent.assured - was.rate.0 + params.rate.0;
        }
        Ok(self.warnings(id))
    }

    /// Removes a class without children and packets. A parent that loses its last child is a leaf
    /// again, with full buckets.
    ///
    /// # Errors
    /// There is no such class, it has children, or packets wait in it. Nothing has changed then.
    pub fn remove(&mut self, id: ClassId) -> Result<(), ClassError> {
        if !self.exists(id) {
            return Err(ClassError::Unknown { class: id });
        }
        let i = id.0 as usize;
        match self.config[i].children {
            0 => {}
            children => return Err(ClassError::HasChildren { class: id, children }),
        }
        match self.class[i].backlog {
            0 => {}
            packets => return Err(ClassError::HasPackets { class: id, packets }),
        }
        self.wheel.cancel(id.0);
        let (parent, place, rate) = (self.class[i].parent, self.class[i].place, self.config[i].params.rate);
        self.class[i].level = VACANT;
        self.class[i].span = 0;
        if parent != NONE {
            if place != NONE {
                self.order[place as usize] = NONE;
            }
            self.disown(parent as usize, rate);
        }
        Ok(())
    }

    /// Takes all packets out of a leaf without sending them, oldest first, and hands them to `each`.
    /// Returns how many.
    ///
    /// # Errors
    /// There is no such class.
    pub fn drain(&mut self, leaf: ClassId, mut each: impl FnMut(Packet)) -> Result<u32, ClassError> {
        if !self.exists(leaf) {
            return Err(ClassError::Unknown { class: leaf });
        }
        let i = leaf.0 as usize;
        let packets = std::mem::take(&mut self.class[i].backlog);
        if packets > 0 {
            self.stop(leaf.0);
        }
        for _ in 0..packets {
            let (packet, next) = self.packets.take(self.class[i].head);
            self.class[i].head = next;
            each(packet);
        }
        if packets > 0 {
            self.packets.taken(packets, Some(self.class[i].head));
        }
        Ok(packets)
    }

    /// The parameters of a class; `None` if there is no such class.
    #[must_use]
    pub fn params(&self, class: ClassId) -> Option<Params> {
        self.exists(class).then(|| self.config[class.0 as usize].params)
    }

    /// Whether there is such a class.
    #[must_use]
    pub fn exists(&self, class: ClassId) -> bool {
        self.class.get(class.0 as usize).is_some_and(|class| class.level != VACANT)
    }

    fn adopt(&mut self, parent: usize, rate: BitRate) {
        let config = &mut self.config[parent];
        config.assured += rate.0;
        config.children += 1;
        if config.children == 1 {
            let class = &mut self.class[parent];
            class.level = self.limits.depth - 1 - config.above;
            class.fill_buckets(self.wheel.now());
            class.span = 0;
            self.feeds_of(parent).fill(Feed::default());
        }
    }

    fn disown(&mut self, parent: usize, rate: BitRate) {
        let config = &mut self.config[parent];
        config.assured -= rate.0;
        config.children -= 1;
        if config.children == 0 {
            let class = &mut self.class[parent];
            class.level = 0;
            class.span = 0;
            class.fill_buckets(self.wheel.now());
            class.deficit = 0;
            self.turns_of(parent).fill(0);
        }
    }

    fn turns_of(&mut self, class: usize) -> &mut [i32] {
        let depth = usize::from(self.limits.depth);
        &mut self.deficit[class * depth..][..depth]
    }

    fn feeds_of(&mut self, class: usize) -> &mut [Feed] {
        let prios = usize::from(Params::PRIOS);
        &mut self.feeds[class * prios..][..prios]
    }

    pub(crate) fn warnings(&self, id: ClassId) -> Warnings {
        let config = &self.config[id.0 as usize];
        let params = &config.params;
        let parent = self.class[id.0 as usize].parent;
        let above = (parent != NONE).then(|| (ClassId(parent), &self.config[parent as usize]));
        let exceeded = |class, config: &ClassConfig| {
            (config.assured > config.params.rate.0).then_some(Warning::ChildrenExceedParent {
                parent: class,
                rate: config.params.rate,
                children: BitRate(config.assured),
            })
        };
        let children =
            exceeded(id, config).or_else(|| above.and_then(|(parent, config)| exceeded(parent, config)));
        let ceil = above.filter(|(_, above)| params.ceil > above.params.ceil).map(|(_, above)| {
            Warning::CeilAboveParent { class: id, ceil: params.ceil, parent: above.params.ceil }
        });
        let burst = params.effective_burst().min(params.effective_cburst());
        let quantum = params.effective_quantum();
        let leaf = config.children == 0;
        Warnings([
            children,
            ceil,
            (burst < Bytes(USUAL.into())).then_some(Warning::BurstBelowPacket { class: id, burst }),
            (leaf && params.quantum.is_some() && quantum < USUAL)
                .then_some(Warning::QuantumBelowPacket { class: id, quantum }),
        ])
    }
}

fn check(class: ClassId, params: &Params) -> Result<(), ClassError> {
    if params.rate < Params::MIN_RATE || params.rate > BitRate::MAX {
        return Err(ClassError::Rate { class, rate: params.rate });
    }
    if params.ceil < params.rate {
        return Err(ClassError::CeilBelowRate { class, ceil: params.ceil, rate: params.rate });
    }
    if params.ceil > BitRate::MAX {
        return Err(ClassError::Rate { class, rate: params.ceil });
    }
    match params.quantum {
        Some(quantum) if quantum == 0 || quantum > Params::MAX_QUANTUM => {
            return Err(ClassError::Quantum { class, quantum });
        }
        _ => {}
    }
    if params.prio >= Params::PRIOS {
        return Err(ClassError::Prio { class, prio: params.prio });
    }
    Ok(())
}

fn leaf_queue(params: &Params, drops: u32) -> LeafQueue {
    let giant = params.effective_burst().min(params.effective_cburst());
    let giant = u32::try_from(giant.0).unwrap_or(u32::MAX);
    LeafQueue { tail: NONE, limit: params.limit, giant, drops }
}
