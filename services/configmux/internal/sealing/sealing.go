// Package sealing encrypts secrets before configmux writes them to disk, and keeps the key.
//
// Sealed data can be neither read nor changed without the key, and not moved to another place, because its place is
// authenticated as associated data. The key is in its own file that only the user of the process can read. localsource
// and filesource seal their secrets with one Keyring, and rotation replaces its key:
//
//	Begin ──► both keys are in the file, the new one seals ──► all is sealed again ──► Finish: the old one is removed
//
// The file is replaced atomically, so that a process that dies at any point leaves a file that opens everything.
package sealing

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// keySize is the key size of AES-256 in bytes.
const keySize = 32

// ErrDamaged is the error of sealed data that was changed or moved from another place.
var ErrDamaged = errors.New("it is damaged, or was moved from another place")

// Box is sealed data.
type Box struct {
	// Key is the name of the key.
	Key string `json:"key"`
	// Data is the nonce, the ciphertext and its tag: AES-256 in Galois counter mode.
	Data []byte `json:"data"`
}

// UnknownKeyError is the error of data that was sealed with a missing key.
type UnknownKeyError struct {
	// Key is the name of the key, and Path the file that lacks it.
	Key, Path string
}

// Error names the remedy.
func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf(
		"it is encrypted with the key %s, which %s does not have: restore the key file from a backup, or apply the secret again",
		e.Key,
		e.Path,
	)
}

// key is a key with its name, which reveals nothing about it.
type key struct {
	ID     string `json:"id"`
	Secret []byte `json:"key"`
}

// Keyring holds the keys: the first one seals, all of them open. Its methods are safe for concurrent use.
type Keyring struct {
	path string
	// uid is the required owner of the file.
	uid int

	// changing is a semaphore for reading and writing the file.
	changing chan struct{}

	mu sync.Mutex
	// keys are the keys of the file after it was read.
	keys []key
	read bool
}

// NewKeyring returns a keyring for a file in an existing directory, for a process of the user uid. The file is created
// with the first Seal.
func NewKeyring(path string, uid int) *Keyring {
	return &Keyring{path: path, uid: uid, changing: make(chan struct{}, 1)}
}

// Path is the key file.
func (k *Keyring) Path() string { return k.path }

// Seal encrypts data with the associated data about, with a new key if there is none. It reads the file each time,
// because data that is sealed with a key that is only in memory is lost with the process. It fails with a *FileError if
// the key file is unusable, or has disappeared.
func (k *Keyring) Seal(data []byte, about string) (Box, error) {
	keys, err := k.change(func(keys []key) []key {
		if len(keys) > 0 {
			return keys
		}
		return []key{newKey()}
	})
	if err != nil {
		return Box{}, err
	}
	sealer, err := keys[0].aead()
	if err != nil {
		return Box{}, err
	}
	sealed := sealer.Seal(nil, nil, data, []byte(about)) //nolint:gosec // it makes a random nonce itself
	return Box{Key: keys[0].ID, Data: sealed}, nil
}

// Open decrypts a box with the associated data about. It fails with a *FileError if the key file is unusable, an
// *UnknownKeyError if it lacks the key, and with ErrDamaged.
func (k *Keyring) Open(box Box, about string) ([]byte, error) {
	keys, err := k.known()
	if err == nil && indexOf(keys, box.Key) < 0 {
		// The file may have been restored.
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

// Current returns the name of the sealing key; empty if there is none yet. It fails as Seal does.
func (k *Keyring) Current() (string, error) {
	keys, err := k.known()
	if err != nil || len(keys) == 0 {
		return "", err
	}
	return keys[0].ID, nil
}

// Rotating reports whether there are keys besides the sealing key. It fails as Seal does.
func (k *Keyring) Rotating() (bool, error) {
	keys, err := k.known()
	return len(keys) > 1, err
}

// Begin adds a new sealing key, unless a rotation has begun already, or there is no key. It fails as Seal does; then
// the keys are unchanged.
func (k *Keyring) Begin() error {
	_, err := k.change(func(keys []key) []key {
		if len(keys) != 1 {
			return keys
		}
		return append([]key{newKey()}, keys...)
	})
	return err
}

// Finish removes all keys except the sealing key. Data that was sealed with them cannot be opened any more. It fails as
// Seal does, and if the file has another sealing key than this keyring has used; then the keys are unchanged.
func (k *Keyring) Finish() error {
	used, err := k.Current()
	if err != nil {
		return err
	}
	replaced := false
	_, err = k.change(func(keys []key) []key {
		if replaced = len(keys) > 0 && keys[0].ID != used; replaced {
			return keys
		}
		return keys[:min(len(keys), 1)]
	})
	if err == nil && replaced {
		err = unusable("the key file %s was replaced during the rotation: rotate the key again", k.path)
	}
	return err
}

// known returns the keys, and reads the file first if necessary.
func (k *Keyring) known() ([]key, error) {
	k.mu.Lock()
	keys, read := k.keys, k.read
	k.mu.Unlock()
	if read {
		return keys, nil
	}
	return k.change(func(keys []key) []key { return keys })
}

// change reads the file, and writes the keys that make returns if they differ. What it has written it reads back. If
// that fails, it writes the keys of before again.
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
		if err := k.readBack(after); err != nil {
			if len(before) > 0 {
				err = errors.Join(err, k.store(before))
			}
			return nil, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys, k.read = after, true
	return after, nil
}

// readBack checks that the file has these keys.
func (k *Keyring) readBack(keys []key) error {
	got, err := k.load()
	if err != nil {
		return err
	}
	if !slices.EqualFunc(got, keys, key.equal) {
		return unusable("the key file %s does not have what was written to it: check the disk", k.path)
	}
	return nil
}

// hasKeys reports whether the file has had a key since the process started.
func (k *Keyring) hasKeys() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.keys) > 0
}

func newKey() key {
	id, secret := make([]byte, 8), make([]byte, keySize)
	// It never fails: without randomness the process ends.
	_, _ = rand.Read(id)
	_, _ = rand.Read(secret)
	return key{ID: hex.EncodeToString(id), Secret: secret}
}

func (k key) equal(other key) bool { return k.ID == other.ID && bytes.Equal(k.Secret, other.Secret) }

func (k key) aead() (cipher.AEAD, error) {
	block, err := aes.NewCipher(k.Secret)
	if err != nil {
		return nil, fmt.Errorf("use the key %s: %w", k.ID, err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// String returns only the name of the key.
func (k key) String() string { return k.ID }

// GoString returns only the name of the key.
func (k key) GoString() string { return k.ID }
