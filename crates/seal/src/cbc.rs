//! AES-256 in CBC mode, chained only within a record, as in UniFL (section 3.3). It authenticates nothing.
//!
//! Before each record are 16 bytes, the initialization vector. It must be unpredictable, so it is the
//! record's nonce, encrypted (NIST SP 800-38A, appendix C).

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, InnerIvInit, KeyInit};
use aes::{Aes256Dec, Aes256Enc};

use crate::{Refused, Suite};

/// Bytes of a block, and of an initialization vector.
const BLOCK: usize = 16;

pub(crate) struct Key {
    encrypt: Aes256Enc,
    decrypt: Aes256Dec,
}

impl Key {
    pub(crate) fn new(key: &[u8; 32]) -> Result<Self, Refused> {
        Ok(Self { encrypt: Aes256Enc::new(&(*key).into()), decrypt: Aes256Dec::new(&(*key).into()) })
    }

    /// Appends the vector and the encrypted record to `out`.
    pub(crate) fn seal(&self, nonce: &[u8; 12], plain: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        let mut vector = [0; BLOCK];
        vector[..12].copy_from_slice(nonce);
        let mut vector = vector.into();
        self.encrypt.encrypt_block(&mut vector);
        out.extend_from_slice(&vector);
        let start = out.len();
        out.extend_from_slice(plain);
        out.resize(start + Suite::AesCbc.sealed(plain.len() as u64) as usize - BLOCK, 0);
        let mode = cbc::Encryptor::<&Aes256Enc>::inner_iv_init(&self.encrypt, &vector);
        let sealed = mode.encrypt_padded::<Pkcs7>(&mut out[start..], plain.len());
        sealed.map(drop).map_err(|_| Refused::Length)
    }

    /// Decrypts a record with its vector, in place. It may not detect that the record was changed.
    pub(crate) fn open<'a>(&self, sealed: &'a mut [u8]) -> Result<&'a [u8], Refused> {
        let (vector, body) = sealed.split_first_chunk_mut::<BLOCK>().ok_or(Refused::Forged)?;
        let mode = cbc::Decryptor::<&Aes256Dec>::inner_iv_init(&self.decrypt, &(*vector).into());
        mode.decrypt_padded::<Pkcs7>(body).map_err(|_| Refused::Forged)
    }
}
