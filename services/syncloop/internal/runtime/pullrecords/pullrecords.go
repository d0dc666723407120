// Package pullrecords remembers on disk with whose credentials images were pulled, so that a pod gets an image that
// another's credentials have pulled only if it could have pulled it itself.
//
// The records are the kubelet's, in the same places below the root directory and in the same form: a node that was a
// kubelet's keeps them. image_manager/pulling has an ImagePullIntent for each image while it is pulled, so that one
// whose pull a kill of this process has interrupted does not count as one that was there before; image_manager/pulled
// has an ImagePulledRecord for each image by the runtime's ID, with the names of secrets and service accounts, and no
// credential.
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
	// mostForMatch is how many secrets a record may have before one that only matches is not written into it: the
	// kubelet's number.
	mostForMatch = 100
)

// Config is what a Book needs.
type Config struct {
	// RootDir is the root directory of the node. Required.
	RootDir string
	// Policy says which images are verified.
	Policy Policy
	// Clock is the time. Required.
	Clock clock.PassiveClock
	// Logger tells of records that cannot be read or written. Required.
	Logger *slog.Logger
}

// Book is the records. Its methods may be called from any goroutine.
type Book struct {
	cfg             Config
	pulling, pulled string

	// mu is held over reads and writes of small files: what is decided by a record has to be written before the next
	// decision.
	mu sync.Mutex
	// begun counts the pulls that run, by image.
	begun map[string]int
}

// New makes a Book. It reads and writes nothing.
func New(cfg Config) *Book {
	dir := filepath.Join(cfg.RootDir, "image_manager")
	return &Book{cfg: cfg, pulling: filepath.Join(dir, "pulling"), pulled: filepath.Join(dir, "pulled"), begun: map[string]int{}}
}

// Credentials are those of a pod for an image that are not the node's.
type Credentials struct {
	Secrets []kubeletconfigv1beta1.ImagePullSecret
	// Account is the service account that a credential provider was asked on behalf of; nil without one.
	Account *kubeletconfigv1beta1.ImagePullServiceAccount
}

// Begin notes that an image is about to be pulled. What it cannot note must not be pulled: a kill of this process would
// make the image everybody's.
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

// Failed notes that a pull that was begun has come to nothing.
func (b *Book) Failed(ctx context.Context, image string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended(ctx, image)
}

// Pulled notes with which credentials a pull that was begun has brought an image of a runtime's ID: nil for the node's,
// and for none.
func (b *Book) Pulled(ctx context.Context, image, id string, with *kubeletconfigv1beta1.ImagePullCredentials) {
	if with == nil {
		with = &kubeletconfigv1beta1.ImagePullCredentials{NodePodsAccessible: true}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.merge(image, id, with); err != nil {
		// The note that it was begun stays: it counts as pulled, with credentials that are not known.
		b.cfg.Logger.ErrorContext(ctx, "with which credentials an image was pulled cannot be written down: pods that use it pull it again", telemetry.KeyImage, image, telemetry.KeyError, err)
		return
	}
	b.ended(ctx, image)
}

// ended removes the note of a pull when no other pull of the image runs.
func (b *Book) ended(ctx context.Context, image string) {
	if b.begun[image] > 1 {
		b.begun[image]--
		return
	}
	delete(b.begun, image)
	if err := remove(b.pulling, image); err != nil {
		b.cfg.Logger.ErrorContext(ctx, "the note of a pull cannot be removed", telemetry.KeyImage, image, telemetry.KeyError, err)
	}
}

// MustPull tells whether a pod has to pull an image that the runtime has under an ID. Its credentials are asked for
// only when they decide.
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
		b.cfg.Logger.ErrorContext(ctx, "with which credentials an image was pulled cannot be read: the pod pulls it again", telemetry.KeyImage, image, telemetry.KeyError, err)
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
	had, found := record.CredentialMapping[name]
	if had.NodePodsAccessible {
		return false, nil
	}
	if !found || len(had.KubernetesSecrets) == 0 && len(had.KubernetesServiceAccounts) == 0 {
		return true, nil
	}
	own, err := credentials()
	if err != nil {
		return true, err
	}
	if secret, same := match(own.Secrets, had.KubernetesSecrets); secret != nil {
		if !same && len(had.KubernetesSecrets) < mostForMatch {
			b.also(ctx, image, id, *secret)
		}
		return false, nil
	}
	return own.Account == nil || !slices.Contains(had.KubernetesServiceAccounts, *own.Account), nil
}

// match finds a secret of a pod among those that an image was pulled with: one of the same content, or the same object,
// whose content may have changed since. Same is true for one that is in both respects.
func match(own, had []kubeletconfigv1beta1.ImagePullSecret) (secret *kubeletconfigv1beta1.ImagePullSecret, same bool) {
	for i := range own {
		for _, other := range had {
			content := other.CredentialHash != "" && own[i].CredentialHash == other.CredentialHash
			object := coordinates(own[i]) == coordinates(other)
			if content || object && len(had) < mostForMatch {
				return &own[i], content && object
			}
		}
	}
	return nil, false
}

// coordinates are a secret without its content.
func coordinates(secret kubeletconfigv1beta1.ImagePullSecret) kubeletconfigv1beta1.ImagePullSecret {
	secret.CredentialHash = ""
	return secret
}

// also writes down a secret with which a pod has been given an image, so that it counts from now on.
func (b *Book) also(ctx context.Context, image, id string, secret kubeletconfigv1beta1.ImagePullSecret) {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.merge(image, id, &kubeletconfigv1beta1.ImagePullCredentials{KubernetesSecrets: []kubeletconfigv1beta1.ImagePullSecret{secret}})
	if err != nil {
		b.cfg.Logger.WarnContext(ctx, "a secret that an image was given for cannot be written down", telemetry.KeyImage, image, telemetry.KeyError, err)
	}
}

// merge adds credentials to the record of an image, unless they are in it. Nil says that it is not known which they
// were. Whoever calls it holds mu.
func (b *Book) merge(image, id string, with *kubeletconfigv1beta1.ImagePullCredentials) error {
	name, err := withoutTag(image)
	if err != nil {
		return err
	}
	// A record that cannot be read is written anew.
	record, err := read[kubeletconfigv1beta1.ImagePulledRecord](b.pulled, id)
	if err != nil || record == nil || record.ImageRef != id {
		record = &kubeletconfigv1beta1.ImagePulledRecord{TypeMeta: typeOf("ImagePulledRecord"), ImageRef: id}
	} else if with == nil {
		return nil
	}
	if record.CredentialMapping == nil {
		record.CredentialMapping = map[string]kubeletconfigv1beta1.ImagePullCredentials{}
	}
	if with != nil {
		merged, changed := mergeCredentials(record.CredentialMapping[name], *with)
		if !changed {
			return nil
		}
		record.CredentialMapping[name] = merged
	}
	record.LastUpdatedTime = metav1.NewTime(b.cfg.Clock.Now())
	return write(b.pulled, id, record)
}

// mergeCredentials adds credentials to those that there are, by which everybody who has one of them may have the image.
func mergeCredentials(had, with kubeletconfigv1beta1.ImagePullCredentials) (merged kubeletconfigv1beta1.ImagePullCredentials, changed bool) {
	switch {
	case had.NodePodsAccessible:
		return had, false
	case with.NodePodsAccessible:
		return kubeletconfigv1beta1.ImagePullCredentials{NodePodsAccessible: true}, true
	}
	secrets := map[kubeletconfigv1beta1.ImagePullSecret]string{}
	for _, secret := range had.KubernetesSecrets {
		secrets[coordinates(secret)] = secret.CredentialHash
	}
	for _, secret := range with.KubernetesSecrets {
		if hash, there := secrets[coordinates(secret)]; !there || hash != secret.CredentialHash {
			secrets[coordinates(secret)], changed = secret.CredentialHash, true
		}
	}
	accounts := slices.Clone(had.KubernetesServiceAccounts)
	for _, account := range with.KubernetesServiceAccounts {
		if !slices.Contains(accounts, account) {
			accounts, changed = append(accounts, account), true
		}
	}
	if !changed {
		return had, false
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

// Recover takes up the pulls that a process before this one has begun and not ended: an image of them that the runtime
// has counts as pulled with credentials that are not known.
func (b *Book) Recover(ctx context.Context, images []*runtimeapi.Image) {
	b.mu.Lock()
	defer b.mu.Unlock()
	intents, err := list[kubeletconfigv1beta1.ImagePullIntent](b.pulling)
	if err != nil {
		b.cfg.Logger.ErrorContext(ctx, "some notes of pulls cannot be read", telemetry.KeyError, err)
	}
	for _, intent := range intents {
		if b.begun[intent.Image] > 0 {
			continue // it is this process that pulls it
		}
		for _, image := range images {
			if !slices.Contains(image.GetRepoTags(), intent.Image) && !slices.Contains(image.GetRepoDigests(), intent.Image) {
				continue
			}
			if err := b.merge(intent.Image, image.GetId(), nil); err != nil {
				b.cfg.Logger.ErrorContext(ctx, "an image that was pulled cannot be written down", telemetry.KeyImage, intent.Image, telemetry.KeyError, err)
				continue
			}
			b.ended(ctx, intent.Image)
		}
	}
}

// Prune removes the records of images that the runtime, which was asked at a time, does not have any more.
func (b *Book) Prune(ctx context.Context, ids []string, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	records, err := list[kubeletconfigv1beta1.ImagePulledRecord](b.pulled)
	if err != nil {
		b.cfg.Logger.ErrorContext(ctx, "some records of pulled images cannot be read", telemetry.KeyError, err)
	}
	for _, record := range records {
		if !record.LastUpdatedTime.Time.Before(asked) || slices.Contains(ids, record.ImageRef) {
			continue
		}
		if err := remove(b.pulled, record.ImageRef); err != nil {
			b.cfg.Logger.ErrorContext(ctx, "the record of an image that is gone cannot be removed", telemetry.KeyImage, record.ImageRef, telemetry.KeyError, err)
		}
	}
}

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: kubeletconfigv1beta1.SchemeGroupVersion.String(), Kind: kind}
}

// fileOf is the file that is named by an image.
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

// read returns nil for a file that is not there.
func read[T any](dir, name string) (*T, error) {
	content, err := readFile[T](fileOf(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nothing is an answer
	}
	return content, err
}

func readFile[T any](path string) (*T, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var content T
	if err := json.Unmarshal(data, &content); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &content, nil
}

// list returns all that can be read.
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
