// Package sealing encrypts what is secret before configmux writes it to the disk, and keeps the key that does so.
//
// What is sealed can be neither read nor changed without the key, and not moved to the place of something else: what it is
// about is authenticated with it. The key is in a file of its own that only the user of the process can read. localsource and
// filesource seal their secrets with one Keyring, and rotation gives it another key:
//
//	Begin ──► both keys are in the file, the new one seals ──► all that there is is sealed anew ──► Finish: the old one is gone
//
// The file is replaced whole, so that a process that dies at any point leaves one that opens everything.
package sealing

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// keySize is that of AES-256, in bytes.
const keySize = 32

// ErrDamaged says that what was sealed is not what was sealed: it has been changed, or is of another place.
var ErrDamaged = errors.New("it is damaged, or was moved from another place")

// Box is what was sealed.
type Box struct {
	// Key is the name of the key.
	Key string `json:"key"`
	// Data are the nonce, what was encrypted, and its tag: AES-256 in Galois counter mode.
	Data []byte `json:"data"`
}

// UnknownKeyError says that something was sealed with a key that is not there.
type UnknownKeyError struct {
	// Key is the name of the key, Path the file that does not have it.
	Key, Path string
}

// Error says what to do.
func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("it is encrypted with the key %s, which %s does not have: put the key file back from a backup, or apply the secret again", e.Key, e.Path)
}

// key is a key with its name, which says nothing of it.
type key struct {
	ID     string `json:"id"`
	Secret []byte `json:"key"`
}

// Keyring has the keys: the first one seals, all open. Its methods may be called at any time by anyone.
type Keyring struct {
	path string
	// uid is who has to own the file.
	uid int

	// changing is taken by who reads or writes the file: one at a time.
	changing chan struct{}

	mu sync.Mutex
	// keys are those of the file, once it was read.
	keys []key
	read bool
}

// NewKeyring returns a keyring on a file in a directory that exists, for a process of the user uid. The file is made when the
// first thing is sealed.
func NewKeyring(path string, uid int) *Keyring {
	return &Keyring{path: path, uid: uid, changing: make(chan struct{}, 1)}
}

// Path is the key file.
func (k *Keyring) Path() string { return k.path }

// Seal encrypts data about something, with a new key if there is none. It fails with a *FileError when the key file cannot
// be used.
func (k *Keyring) Seal(data []byte, about string) (Box, error) {
	keys, err := k.known()
	if err == nil && len(keys) == 0 {
		keys, err = k.change(func(keys []key) []key {
			if len(keys) > 0 {
				return keys
			}
			return []key{newKey()}
		})
	}
	if err != nil {
		return Box{}, err
	}
	sealer, err := keys[0].aead()
	if err != nil {
		return Box{}, err
	}
	return Box{Key: keys[0].ID, Data: sealer.Seal(nil, nil, data, []byte(about))}, nil //nolint:gosec // it makes a random nonce itself
}

// Open returns what was sealed about something. It fails with a *FileError when the key file cannot be used, an
// *UnknownKeyError when it does not have the key, and with ErrDamaged.
func (k *Keyring) Open(box Box, about string) ([]byte, error) {
	keys, err := k.known()
	if err == nil && indexOf(keys, box.Key) < 0 {
		// Somebody may have put the file back.
		keys, err = k.change(func(keys []key) []key { return keys })
	}
	if err != nil {
		return nil, err
	}
	i := indexOf(keys, box.Key)
	if i < 0 {
		return nil, &UnknownKeyError{Key: box.Key, Path: k.path}
	}
	opener, err := keys[i].aead()
	if err != nil {
		return nil, err
	}
	data, err := opener.Open(nil, nil, box.Data, []byte(about))
	if err != nil {
		return nil, ErrDamaged
	}
	return data, nil
}

func indexOf(keys []key, id string) int {
	return slices.IndexFunc(keys, func(k key) bool { return k.ID == id })
}

// Current returns the name of the key that seals; empty when there is none yet. It fails as Seal does.
func (k *Keyring) Current() (string, error) {
	keys, err := k.known()
	if err != nil || len(keys) == 0 {
		return "", err
	}
	return keys[0].ID, nil
}

// Rotating reports whether there are keys besides the one that seals. It fails as Seal does.
func (k *Keyring) Rotating() (bool, error) {
	keys, err := k.known()
	return len(keys) > 1, err
}

// Begin puts a new key before the one that there is, unless a rotation has begun already, or there is no key. It fails as
// Seal does; then the keys are as they were.
func (k *Keyring) Begin() error {
	_, err := k.change(func(keys []key) []key {
		if len(keys) != 1 {
			return keys
		}
		return append([]key{newKey()}, keys...)
	})
	return err
}

// Finish removes all keys but the one that seals. What is sealed with them cannot be opened any more. It fails as Seal does;
// then the keys are as they were.
func (k *Keyring) Finish() error {
	_, err := k.change(func(keys []key) []key { return keys[:min(len(keys), 1)] })
	return err
}

// known returns the keys, from the file when that was not read yet.
func (k *Keyring) known() ([]key, error) {
	k.mu.Lock()
	keys, read := k.keys, k.read
	k.mu.Unlock()
	if read {
		return keys, nil
	}
	return k.change(func(keys []key) []key { return keys })
}

// change reads the file, and writes what is made of its keys if that is something else.
func (k *Keyring) change(make func([]key) []key) ([]key, error) {
	k.changing <- struct{}{}
	defer func() { <-k.changing }()
	before, err := k.load()
	if err != nil {
		return nil, err
	}
	after := make(before)
	if len(after) != len(before) {
		if err := k.store(after); err != nil {
			return nil, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys, k.read = after, true
	return after, nil
}

func newKey() key {
	id, secret := make([]byte, 8), make([]byte, keySize)
	// They never fail: without randomness the process ends.
	_, _ = rand.Read(id)
	_, _ = rand.Read(secret)
	return key{ID: hex.EncodeToString(id), Secret: secret}
}

func (k key) aead() (cipher.AEAD, error) {
	block, err := aes.NewCipher(k.Secret)
	if err != nil {
		return nil, fmt.Errorf("use the key %s: %w", k.ID, err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// String has nothing of the key but its name.
func (k key) String() string { return k.ID }

// GoString has nothing of the key but its name.
func (k key) GoString() string { return k.ID }
