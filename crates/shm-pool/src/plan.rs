//! The layout of a pool. Node and workers compute it from the same size classes.

use thalweg_wire::Range;

/// Heads and bodies begin at multiples of this many bytes.
const PAGE: u64 = 4096;
/// Bytes of body for which the head gets another page of ranges. A page has room for 256 ranges. That is more
/// than lost Ethernet-sized datagrams can leave in 1 MiB.
const BODY_A_PAGE: u64 = 1 << 20;

/// A size class: slots of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Largest object in bytes.
    pub bytes: u64,
    /// Number of slots.
    pub slots: u32,
}

impl Class {
    pub(crate) fn head_bytes(&self) -> u64 {
        PAGE.saturating_add(self.bytes.div_ceil(BODY_A_PAGE).saturating_mul(PAGE))
    }

    /// Bytes of a slot: head and body.
    fn slot_bytes(&self) -> u64 {
        let body = self.bytes.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        self.head_bytes().saturating_add(body)
    }
}

/// The ranges of a slot's head and body in the pool's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub class: usize,
    pub head: Range,
    pub body: Range,
}

/// The slots of a pool: one size class after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    classes: Vec<Class>,
}

impl Plan {
    /// A plan with these size classes.
    pub fn new(classes: &[Class]) -> Self {
        Self { classes: classes.to_vec() }
    }

    /// The size classes.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Bytes of all slots; `u64::MAX` if the sum overflows.
    pub fn bytes(&self) -> u64 {
        let each = self.classes.iter().map(|class| class.slot_bytes().saturating_mul(class.slots.into()));
        each.fold(0, u64::saturating_add)
    }

    /// Number of slots.
    pub fn slots(&self) -> u64 {
        self.classes.iter().map(|class| u64::from(class.slots)).sum()
    }

    /// The place of a slot; `None` if there is no such slot.
    pub(crate) fn place(&self, slot: u32) -> Option<Place> {
        let (mut number, mut start) = (slot, 0);
        for (index, class) in self.classes.iter().enumerate() {
            let bytes = class.slot_bytes();
            if number < class.slots {
                let head = start + u64::from(number) * bytes;
                let body = head + class.head_bytes();
                return Some(Place {
                    class: index,
                    head: Range::new(head, body),
                    body: Range::new(body, body + class.bytes),
                });
            }
            number -= class.slots;
            start += u64::from(class.slots) * bytes;
        }
        None
    }
}
