// Package certificates has an API server sign certificates of a node and sees to it that there is always one that is valid: it
// makes a key, requests a certificate for it by a CertificateSigningRequest, keeps both in one file, and does it all again before
// the certificate expires.
//
// The file is a kubelet's, so that an operator finds what they know: NAME-current.pem, a link to NAME-DATE.pem, which has the
// certificates and the key in PEM. See "Certificate Rotation" in the Kubernetes documentation.
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
	// currentSuffix is what the link's name ends in.
	currentSuffix = "-current.pem"
	// pendingSuffix is that of the key whose certificate has been requested.
	pendingSuffix = ".key.pending"
	// kept is how many files of certificates are left: the current one, and the one before it for who has just read the link.
	kept = 2
	// timeFormat orders the files by their names.
	timeFormat = "2006-01-02-15-04-05.000"
)

// Store is where a certificate and its key are. Only one process may write it.
type Store struct {
	// Dir is the directory, which must exist.
	Dir string
	// Name is what the files' names begin with, as "kubelet-client".
	Name string
	// Mode is that of the files, which have a private key: 0600, or 0640 where a group reads them.
	Mode fs.FileMode
}

// Current is the path of the link, which is the certificate's and the key's.
func (s Store) Current() string { return filepath.Join(s.Dir, s.Name+currentSuffix) }

// StoreOf returns the store whose link a path is, and false for a path that none has.
func StoreOf(path string, mode fs.FileMode) (Store, bool) {
	name, ok := strings.CutSuffix(filepath.Base(path), currentSuffix)
	return Store{Dir: filepath.Dir(path), Name: name, Mode: mode}, ok && name != ""
}

// Load returns the current certificate with its Leaf. The error is fs.ErrNotExist when there is none.
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

// Save makes a certificate and its key, both in PEM, the current one. Whoever reads the link has the old or the new one, whole.
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

// prune removes what is older than the current file and the one before it.
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
