//! Takes the place of `cbc` in builds without the feature `baselines`: no key can be made.

use crate::Refused;

pub(crate) enum Key {}

impl Key {
    pub(crate) fn new(_: &[u8; 32]) -> Result<Self, Refused> {
        Err(Refused::Suite)
    }

    pub(crate) fn seal(&self, _: &[u8; 12], _: &[u8], _: &mut Vec<u8>) -> Result<(), Refused> {
        match *self {}
    }

    pub(crate) fn open<'a>(&self, _: &'a mut [u8]) -> Result<&'a [u8], Refused> {
        match *self {}
    }
}
