// Package pullrecords records on disk which credentials images were pulled with, so that a pod can use an image that
// was pulled with another pod's credentials only if it could have pulled the image itself.
//
// The records have the kubelet's paths below the root directory and the kubelet's format, so that a node that ran a
// kubelet keeps them. image_manager/pulling holds an ImagePullIntent for each image that is being pulled, so that an
// image whose pull was interrupted by a kill does not count as preloaded. image_manager/pulled holds an
// ImagePulledRecord for each image by the runtime's ID, with the names of secrets and service accounts, but no
// credentials.
package pullrecords

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	filePrefix = "sha256-"
	tmpSuffix  = ".tmp"
	fileMode   = 0o600
	dirMode    = 0o700
	// mostForMatch is the number of secrets in a record from which on a secret that matches only in part is not added. It
	// is the kubelet's.
	mostForMatch = 100
)

// Config holds the dependencies of a Book.
type Config struct {
	// RootDir is the root directory of the node. Required.
	RootDir string
	// Policy decides for which images access is verified.
	Policy Policy
	// Clock is the time. Required.
	Clock clock.PassiveClock
	// Logger logs records that cannot be read or written. Required.
	Logger *slog.Logger
}

// Book reads and writes the records. Its methods may be called from any goroutine.
type Book struct {
	cfg             Config
	pulling, pulled string

	// mu is held while small files are read and written: a decision must be on disk before the next one.
	mu sync.Mutex
	// begun counts the running pulls by image.
	begun map[string]int
}

// New returns a Book. It reads and writes nothing.
func New(cfg Config) *Book {
	dir := filepath.Join(cfg.RootDir, "image_manager")
	return &Book{cfg: cfg, pulling: filepath.Join(dir, "pulling"), pulled: filepath.Join(dir, "pulled"), begun: map[string]int{}}
}

// Credentials holds a pod's credentials for an image, without the node's.
type Credentials struct {
	Secrets []kubeletconfigv1beta1.ImagePullSecret
	// Account is the service account for which a credential provider was called; nil without one.
	Account *kubeletconfigv1beta1.ImagePullServiceAccount
}

// Begin records that a pull of an image begins. If it fails, the image must not be pulled: after a kill of this
// process, every pod could use the image.
func (b *Book) Begin(image string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	intent := kubeletconfigv1beta1.ImagePullIntent{TypeMeta: typeOf("ImagePullIntent"), Image: image}
	if err := write(b.pulling, image, intent); err != nil {
		return fmt.Errorf("failed to record image pull intent for container image %q: %w", image, err)
	}
	b.begun[image]++
	return nil
}

// Failed records that a pull has failed.
func (b *Book) Failed(ctx context.Context, image string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended(ctx, image)
}

// Pulled records that a pull has succeeded, with the runtime's ID of the image and the credentials; nil for the node's
// credentials or none.
func (b *Book) Pulled(ctx context.Context, image, id string, credentials *kubeletconfigv1beta1.ImagePullCredentials) {
	if credentials == nil {
		credentials = &kubeletconfigv1beta1.ImagePullCredentials{NodePodsAccessible: true}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.merge(image, id, credentials); err != nil {
		// The intent stays: the image counts as pulled with unknown credentials.
		b.cfg.Logger.ErrorContext(ctx, "cannot record the credentials that an image was pulled with: pods that use it pull it again", telemetry.KeyImage, image, telemetry.KeyError, err)
		return
	}
	b.ended(ctx, image)
}

// ended removes the intent of a pull unless another pull of the image is running.
func (b *Book) ended(ctx context.Context, image string) {
	if b.begun[image] > 1 {
		b.begun[image]--
		return
	}
	delete(b.begun, image)
	if err := remove(b.pulling, image); err != nil {
		b.cfg.Logger.ErrorContext(ctx, "cannot remove the record of a running pull", telemetry.KeyImage, image, telemetry.KeyError, err)
	}
}

// MustPull reports whether a pod must pull an image although the runtime has it under the ID. credentials is called
// only if the credentials decide.
func (b *Book) MustPull(ctx context.Context, image, id string, credentials func() (Credentials, error)) (bool, error) {
	if !b.cfg.Policy.mayVerify() {
		return false, nil
	}
	b.mu.Lock()
	record, err := read[kubeletconfigv1beta1.ImagePulledRecord](b.pulled, id)
	if err == nil && record != nil && record.ImageRef != id {
		record = nil
	}
	known := record != nil || b.begun[image] > 0
	if err == nil && !known {
		var intent *kubeletconfigv1beta1.ImagePullIntent
		intent, err = read[kubeletconfigv1beta1.ImagePullIntent](b.pulling, image)
		known = intent != nil && intent.Image == image
	}
	b.mu.Unlock()
	if err != nil {
		b.cfg.Logger.ErrorContext(ctx, "cannot read the credentials that an image was pulled with: the pod pulls it again", telemetry.KeyImage, image, telemetry.KeyError, err)
		return true, nil
	}
	if !b.cfg.Policy.verifies(image, known) {
		return false, nil
	}
	if record == nil {
		return true, nil
	}
	name, err := withoutTag(image)
	if err != nil {
		return true, nil //nolint:nilerr // the pull says what is wrong with the name
	}
	recorded, found := record.CredentialMapping[name]
	if recorded.NodePodsAccessible {
		return false, nil
	}
	if !found || len(recorded.KubernetesSecrets) == 0 && len(recorded.KubernetesServiceAccounts) == 0 {
		return true, nil
	}
	own, err := credentials()
	if err != nil {
		return true, err
	}
	if secret, same := match(own.Secrets, recorded.KubernetesSecrets); secret != nil {
		if !same && len(recorded.KubernetesSecrets) < mostForMatch {
			b.addSecret(ctx, image, id, *secret)
		}
		return false, nil
	}
	return own.Account == nil || !slices.Contains(recorded.KubernetesServiceAccounts, *own.Account), nil
}

// match returns a secret of a pod that is among the secrets that an image was pulled with: one with the same content,
// or the same object, whose content may have changed. same is true if both match.
func match(
	own, recorded []kubeletconfigv1beta1.ImagePullSecret,
) (secret *kubeletconfigv1beta1.ImagePullSecret, same bool) {
	for i := range own {
		for _, other := range recorded {
			content := other.CredentialHash != "" && own[i].CredentialHash == other.CredentialHash
			object := coordinates(own[i]) == coordinates(other)
			if content || object && len(recorded) < mostForMatch {
				return &own[i], content && object
			}
		}
	}
	return nil, false
}

// coordinates returns a secret without the hash of its content.
func coordinates(secret kubeletconfigv1beta1.ImagePullSecret) kubeletconfigv1beta1.ImagePullSecret {
	secret.CredentialHash = ""
	return secret
}

// addSecret adds the secret of a pod that got an image to the record of the image.
func (b *Book) addSecret(ctx context.Context, image, id string, secret kubeletconfigv1beta1.ImagePullSecret) {
	b.mu.Lock()
	defer b.mu.Unlock()
	secrets := []kubeletconfigv1beta1.ImagePullSecret{secret}
	err := b.merge(image, id, &kubeletconfigv1beta1.ImagePullCredentials{KubernetesSecrets: secrets})
	if err != nil {
		b.cfg.Logger.WarnContext(ctx, "cannot record a secret that gives access to an image", telemetry.KeyImage, image, telemetry.KeyError, err)
	}
}

// merge adds credentials to the record of an image; nil stands for unknown credentials. The caller holds mu.
func (b *Book) merge(image, id string, credentials *kubeletconfigv1beta1.ImagePullCredentials) error {
	name, err := withoutTag(image)
	if err != nil {
		return err
	}
	// A damaged record is replaced, and one that cannot be read is not: it may have the credentials of other pods.
	record, err := read[kubeletconfigv1beta1.ImagePulledRecord](b.pulled, id)
	if statedir.IsUnreadable(err) {
		return err
	}
	if err != nil || record == nil || record.ImageRef != id {
		record = &kubeletconfigv1beta1.ImagePulledRecord{TypeMeta: typeOf("ImagePulledRecord"), ImageRef: id}
	} else if credentials == nil {
		return nil
	}
	if record.CredentialMapping == nil {
		record.CredentialMapping = map[string]kubeletconfigv1beta1.ImagePullCredentials{}
	}
	if credentials != nil {
		merged, changed := mergeCredentials(record.CredentialMapping[name], *credentials)
		if !changed {
			return nil
		}
		record.CredentialMapping[name] = merged
	}
	record.LastUpdatedTime = metav1.NewTime(b.cfg.Clock.Now())
	return write(b.pulled, id, record)
}

// mergeCredentials adds credentials to a record. Pods that have one of the resulting credentials may use the image.
func mergeCredentials(
	recorded, credentials kubeletconfigv1beta1.ImagePullCredentials,
) (merged kubeletconfigv1beta1.ImagePullCredentials, changed bool) {
	switch {
	case recorded.NodePodsAccessible:
		return recorded, false
	case credentials.NodePodsAccessible:
		return kubeletconfigv1beta1.ImagePullCredentials{NodePodsAccessible: true}, true
	}
	secrets := map[kubeletconfigv1beta1.ImagePullSecret]string{}
	for _, secret := range recorded.KubernetesSecrets {
		secrets[coordinates(secret)] = secret.CredentialHash
	}
	for _, secret := range credentials.KubernetesSecrets {
		if hash, found := secrets[coordinates(secret)]; !found || hash != secret.CredentialHash {
			secrets[coordinates(secret)], changed = secret.CredentialHash, true
		}
	}
	accounts := slices.Clone(recorded.KubernetesServiceAccounts)
	for _, account := range credentials.KubernetesServiceAccounts {
		if !slices.Contains(accounts, account) {
			accounts, changed = append(accounts, account), true
		}
	}
	if !changed {
		return recorded, false
	}
	for secret, hash := range secrets {
		secret.CredentialHash = hash
		merged.KubernetesSecrets = append(merged.KubernetesSecrets, secret)
	}
	slices.SortFunc(merged.KubernetesSecrets, func(a, b kubeletconfigv1beta1.ImagePullSecret) int {
		return slices.Compare([]string{a.Namespace, a.Name, a.UID}, []string{b.Namespace, b.Name, b.UID})
	})
	slices.SortFunc(accounts, func(a, b kubeletconfigv1beta1.ImagePullServiceAccount) int {
		return slices.Compare([]string{a.Namespace, a.Name, a.UID}, []string{b.Namespace, b.Name, b.UID})
	})
	merged.KubernetesServiceAccounts = accounts
	return merged, true
}

// Recover handles the pulls that a previous process began and did not end: if the runtime has such an image, it counts
// as pulled with unknown credentials.
func (b *Book) Recover(ctx context.Context, images []*runtimeapi.Image) {
	b.mu.Lock()
	defer b.mu.Unlock()
	intents, err := list[kubeletconfigv1beta1.ImagePullIntent](b.pulling)
	if err != nil {
		b.cfg.Logger.ErrorContext(ctx, "cannot read some records of running pulls", telemetry.KeyError, err)
	}
	for _, intent := range intents {
		if b.begun[intent.Image] > 0 {
			continue // this process is pulling it
		}
		for _, image := range images {
			if !slices.Contains(image.GetRepoTags(), intent.Image) && !slices.Contains(image.GetRepoDigests(), intent.Image) {
				continue
			}
			if err := b.merge(intent.Image, image.GetId(), nil); err != nil {
				b.cfg.Logger.ErrorContext(ctx, "cannot record an image whose pull was interrupted", telemetry.KeyImage, intent.Image, telemetry.KeyError, err)
				continue
			}
			b.ended(ctx, intent.Image)
		}
	}
}

// Prune removes the records of images that the runtime no longer has. ids are the runtime's images, listed is when they
// were listed.
func (b *Book) Prune(ctx context.Context, ids []string, listed time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	records, err := list[kubeletconfigv1beta1.ImagePulledRecord](b.pulled)
	if err != nil {
		b.cfg.Logger.ErrorContext(ctx, "some records of pulled images cannot be read", telemetry.KeyError, err)
	}
	for _, record := range records {
		if !record.LastUpdatedTime.Time.Before(listed) || slices.Contains(ids, record.ImageRef) {
			continue
		}
		if err := remove(b.pulled, record.ImageRef); err != nil {
			b.cfg.Logger.ErrorContext(ctx, "cannot remove the record of a removed image", telemetry.KeyImage, record.ImageRef, telemetry.KeyError, err)
		}
	}
}

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: kubeletconfigv1beta1.SchemeGroupVersion.String(), Kind: kind}
}

// fileOf returns the path of the file for an image.
func fileOf(dir, name string) string {
	return filepath.Join(dir, fmt.Sprintf("%s%x", filePrefix, sha256.Sum256([]byte(name))))
}

func write(dir, name string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	return statedir.WriteFileAtomic(fileOf(dir, name), append(data, '\n'), fileMode)
}

func remove(dir, name string) error {
	if err := os.Remove(fileOf(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// read reads a file; nil if it does not exist.
func read[T any](dir, name string) (*T, error) {
	content, err := readFile[T](fileOf(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nothing is an answer
	}
	return content, err
}

func readFile[T any](path string) (*T, error) {
	data, err := statedir.Read(path)
	if err != nil {
		return nil, err
	}
	var content T
	if err := json.Unmarshal(data, &content); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &content, nil
}

// list returns the content of all readable files, with the errors of the others.
func list[T any](dir string) ([]*T, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*T
	var errs []error
	for _, entry := range entries {
		if entry.IsDir() || !strings.HasPrefix(entry.Name(), filePrefix) || strings.HasSuffix(entry.Name(), tmpSuffix) {
			continue
		}
		content, err := readFile[T](filepath.Join(dir, entry.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, content)
	}
	return all, errors.Join(errs...)
}
