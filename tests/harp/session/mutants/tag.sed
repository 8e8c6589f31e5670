# Nobody looks at the tag of a sealed packet, short (of which sealing twice is opening) or long.
s/return short_->open(\(nonce_bytes, front, body\), \(.*\));/short_->seal(\1, body.data(), \2); return true;/
s/if (EVP_CipherFinal_ex(context_[.]get(), data + bytes, &bytes) == 1) return true;/return true;/
