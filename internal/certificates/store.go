// Package certificates keeps a valid certificate for a node. It creates a key, requests a certificate with a
// CertificateSigningRequest, stores both in one file, and renews the certificate before it expires.
//
// The file names are the kubelet's, so that operators know them: NAME-current.pem is a link to NAME-DATE.pem, which has
// the certificates and the key in PEM. See "Certificate Rotation" in the Kubernetes documentation.
package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// currentSuffix is the suffix of the link's name.
	currentSuffix = "-current.pem"
	// pendingSuffix is the suffix of the key of a pending request.
	pendingSuffix = ".key.pending"
	// kept is the number of certificate files to keep: the current one, and the previous one for a reader that has just
	// resolved the link.
	kept = 2
	// timeFormat sorts the files by name in order of time.
	timeFormat = "2006-01-02-15-04-05.000"
)

// Store is the place of a certificate and its key. Only one process may write it.
type Store struct {
	// Dir is the directory, which must exist.
	Dir string
	// Name is the prefix of the file names, for example "kubelet-client".
	Name string
	// Mode is the mode of the files, which contain a private key: 0600, or 0640 if a group reads them.
	Mode fs.FileMode
}

// Current returns the path of the link to the current certificate and key.
func (s Store) Current() string { return filepath.Join(s.Dir, s.Name+currentSuffix) }

// StoreOf returns the store that path is the link of, and false if path is no such link.
func StoreOf(path string, mode fs.FileMode) (Store, bool) {
	name, ok := strings.CutSuffix(filepath.Base(path), currentSuffix)
	return Store{Dir: filepath.Dir(path), Name: name, Mode: mode}, ok && name != ""
}

// Load returns the current certificate with its Leaf. The error is fs.ErrNotExist if there is none.
func (s Store) Load() (*tls.Certificate, error) {
	pem, err := os.ReadFile(s.Current())
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(pem, pem)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: remove it to have another one requested", s.Current(), err)
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Current(), err)
		}
	}
	return &pair, nil
}

// Save makes a certificate and its key, both in PEM, the current one. A reader of the link sees either the old or the
// new file, complete.
func (s Store) Save(certificate, key []byte, now time.Time) error {
	file := filepath.Join(s.Dir, s.Name+"-"+now.UTC().Format(timeFormat)+".pem")
	if err := statedir.WriteFileAtomic(file, slices.Concat(certificate, key), s.Mode); err != nil {
		return err
	}
	link := filepath.Join(s.Dir, "."+s.Name+currentSuffix)
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("saving a certificate: %w", err)
	}
	if err := os.Symlink(filepath.Base(file), link); err != nil {
		return fmt.Errorf("saving a certificate: %w", err)
	}
	if err := os.Rename(link, s.Current()); err != nil {
		return fmt.Errorf("saving a certificate: %w", err)
	}
	return errors.Join(statedir.RemoveFile(s.pending()), s.prune(file))
}

// prune removes all files except the current one and the previous one.
func (s Store) prune(current string) error {
	files, err := filepath.Glob(filepath.Join(s.Dir, s.Name+"-[0-9]*.pem"))
	if err != nil {
		return err
	}
	slices.Sort(files)
	files = slices.DeleteFunc(files, func(file string) bool { return file == current })
	for _, file := range files[:max(0, len(files)+1-kept)] {
		if err := statedir.RemoveFile(file); err != nil {
			return err
		}
	}
	return nil
}

func (s Store) pending() string { return filepath.Join(s.Dir, s.Name+pendingSuffix) }
