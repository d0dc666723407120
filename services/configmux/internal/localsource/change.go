package localsource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

const (
	// maxManifest bounds the size of a file with a pod, as etcd does for an API server.
	maxManifest = 1 << 20
	// checksumRoom is the part of it for the checksum.
	checksumRoom = 128
)

// Applied is the result of an apply.
type Applied struct {
	// Pod is the pod with its defaults and its full name. It must not be changed.
	Pod *v1.Pod
	// Op is Add or Update, or None if the pod was unchanged.
	Op podset.Op

	// resealed is the number of files that Reseal has written.
	resealed int
}

// Apply creates a pod, or replaces the applied pod of the same name. With dryRun it only returns what it would do. It
// fails with an *InvalidError, a *TakenError or a *FullError if the pod is refused, and with ErrEnded if the source has
// ended. After any other error the pod may be unchanged or applied; a second call resolves that.
func (s *Source) Apply(ctx context.Context, pod *v1.Pod, dryRun bool) (Applied, error) {
	wanted, err := s.entryOf(pod)
	if err != nil {
		return Applied{}, err
	}
	return s.ask(ctx, func(ctx context.Context) (Applied, error) { return s.apply(ctx, wanted, dryRun) })
}

// Delete removes a pod, by its name with or without the node's suffix. It fails with an *UnknownError or an
// *AmbiguousError, and otherwise as Apply does.
func (s *Source) Delete(ctx context.Context, name types.NamespacedName) error {
	if name.Namespace == "" {
		name.Namespace = metav1.NamespaceDefault
	}
	_, err := s.ask(ctx, func(ctx context.Context) (Applied, error) { return Applied{}, s.remove(ctx, name) })
	return err
}

// entryOf returns the entry of a pod. It does not depend on other pods.
func (s *Source) entryOf(pod *v1.Pod) (*entry, error) {
	manifest := *pod
	manifest.APIVersion, manifest.Kind = "v1", "Pod"
	if manifest.Namespace == "" {
		manifest.Namespace = metav1.NamespaceDefault
	}
	// The observed status is not part of the desired state, nor are annotations of the agent.
	manifest.Status = v1.PodStatus{}
	manifest.Annotations = podset.StripOwnAnnotations(manifest.Annotations)
	data, err := json.Marshal(&manifest)
	if err != nil {
		return nil, fmt.Errorf("encoding the pod: %w", err)
	}
	if len(data) > maxManifest-checksumRoom {
		return nil, &InvalidError{Problems: []staticpod.Problem{
			{
				Message: fmt.Sprintf(
					"the pod has %d bytes as JSON, and may have %d at most: make it smaller",
					len(data),
					maxManifest-checksumRoom,
				),
			},
		}}
	}
	given := types.NamespacedName{Namespace: manifest.Namespace, Name: manifest.Name}
	return s.decode(given, data)
}

// decode decodes a manifest with one pod.
func (s *Source) decode(given types.NamespacedName, data []byte) (*entry, error) {
	path := s.pathOf(given)
	result := staticpod.Decode(
		data,
		staticpod.Origin{Source: Name, Allowed: s.cfg.Allowed, Node: s.cfg.Node, Standalone: s.cfg.Standalone, Path: path},
	)
	if len(result.Problems) > 0 {
		for i := range result.Problems {
			// The manifest is one line, which no person has written.
			result.Problems[i].Message = strings.TrimPrefix(result.Problems[i].Message, "line 1: ")
		}
		return nil, &InvalidError{Problems: result.Problems}
	}
	if len(result.Pods) != 1 || len(result.Objects) > 0 {
		return nil, &InvalidError{
			Problems: []staticpod.Problem{{Message: fmt.Sprintf("it has %d pods, want one", len(result.Pods))}},
		}
	}
	return &entry{given: given, path: path, manifest: data, pod: result.Pods[0]}, nil
}

// apply adds an entry. It runs in the owner's goroutine.
func (s *Source) apply(ctx context.Context, wanted *entry, dryRun bool) (Applied, error) {
	began := s.cfg.Clock.Now()
	known := s.pods[wanted.given]
	outcome := Applied{Pod: wanted.pod, Op: podset.Add}
	if known != nil {
		outcome.Op = podset.Update
		if string(known.manifest) == string(wanted.manifest) {
			return Applied{Pod: known.pod, Op: podset.None}, nil
		}
	}
	var err error
	if s.steps.Do(func() { err = s.admit(wanted, known) }); err != nil || dryRun {
		return outcome, err
	}
	ctx, span := s.begin(ctx, wanted.path, began)
	data, err := withChecksum(wanted.manifest)
	if err == nil {
		err = s.writeFile(wanted.path, data)
	}
	telemetry.End(span, err)
	causes := map[string]context.Context{wanted.path: ctx}
	if err != nil {
		// The file may have been written despite the error.
		s.read(causes)
		return Applied{}, err
	}
	s.pods[wanted.given] = wanted
	delete(s.broken, wanted.path)
	delete(s.broken, asideOf(wanted.path))
	s.give(causes)
	return outcome, nil
}

// admit returns why a pod conflicts with the others; nil if it does not.
func (s *Source) admit(wanted, known *entry) error {
	if known == nil && len(s.pods) >= s.cfg.MaxPods {
		return &FullError{What: "pods", Number: len(s.pods)}
	}
	if other := s.withUID(wanted.pod.UID); other != nil && other != known {
		return &TakenError{What: "UID", Pod: other.name(), Source: Name, Path: other.path}
	}
	holder, taken := s.cfg.Others().Holder(wanted.name(), wanted.pod.UID, Name)
	switch {
	case !taken:
		return nil
	case holder.Name == wanted.name():
		return &TakenError{What: "name", Pod: holder.Name, Source: holder.Source, Path: holder.Path}
	default:
		return &TakenError{What: "UID", Pod: holder.Name, Source: holder.Source, Path: holder.Path}
	}
}

// remove removes a pod. It runs in the owner's goroutine.
func (s *Source) remove(ctx context.Context, name types.NamespacedName) error {
	began := s.cfg.Clock.Now()
	known, err := s.find(name)
	if unknown := (*UnknownError)(nil); errors.As(err, &unknown) {
		return s.removeBroken(name, unknown)
	}
	if err != nil {
		return err
	}
	ctx, span := s.begin(ctx, known.path, began)
	span.AddEvent("gone")
	err = statedir.RemoveFile(known.path)
	if err != nil {
		err = fmt.Errorf("removing the pod's file: %w: check that %s is writable, and try again", err, s.cfg.Dir)
	}
	telemetry.End(span, err)
	causes := map[string]context.Context{known.path: ctx}
	if err != nil {
		// The file may have been removed despite the error.
		s.read(causes)
		return err
	}
	delete(s.pods, known.given)
	s.give(causes)
	return nil
}

// removeBroken removes the files of a rejected pod, or returns why there is nothing to delete.
func (s *Source) removeBroken(name types.NamespacedName, unknown error) error {
	given := types.NamespacedName{Namespace: name.Namespace, Name: strings.TrimSuffix(name.Name, s.suffix())}
	for _, path := range []string{s.pathOf(name), s.pathOf(given)} {
		found := slices.DeleteFunc([]string{path, asideOf(path)}, func(path string) bool {
			_, broken := s.broken[path]
			return !broken
		})
		if len(found) > 0 {
			return s.removeFiles(found)
		}
	}
	return unknown
}

// removeFiles removes files without a valid pod.
func (s *Source) removeFiles(paths []string) error {
	for _, path := range paths {
		if err := statedir.RemoveFile(path); err != nil {
			s.read(nil)
			return fmt.Errorf("removing the file of the pod: %w: check that %s is writable, and try again", err, s.cfg.Dir)
		}
		delete(s.broken, path)
	}
	s.give(nil)
	return nil
}

// find returns the pod of a name.
func (s *Source) find(name types.NamespacedName) (*entry, error) {
	var exact *entry
	if given, has := strings.CutSuffix(name.Name, s.suffix()); has {
		exact = s.pods[types.NamespacedName{Namespace: name.Namespace, Name: given}]
	}
	suffixed := s.pods[name]
	switch {
	case exact != nil && suffixed != nil:
		return nil, &AmbiguousError{Exact: exact.name(), Suffixed: suffixed.name()}
	case exact != nil:
		return exact, nil
	case suffixed != nil:
		return suffixed, nil
	default:
		return nil, &UnknownError{Name: name}
	}
}

// begin starts this source's part of the trace of a change: in the caller's trace, or in a new one.
func (s *Source) begin(ctx context.Context, path string, began time.Time) (context.Context, trace.Span) {
	// The consequences of the change continue after the call.
	ctx, span := s.cfg.Tracer.Start(context.WithoutCancel(ctx), "source.read", trace.WithTimestamp(began))
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrFile.String(path), telemetry.AttrSource.String(Name))
	}
	return ctx, span
}

// writeFile writes a file, and removes its broken version.
func (s *Source) writeFile(path string, data []byte) error {
	err := statedir.WriteFileAtomic(path, data, fileMode)
	if err == nil {
		if _, aside := s.broken[asideOf(path)]; aside {
			err = statedir.RemoveFile(asideOf(path))
		}
	}
	if err != nil {
		return fmt.Errorf(
			"saving the %s: %w: check that there is space in %s and that it is writable, and try again",
			kindIn(path),
			err,
			s.cfg.Dir,
		)
	}
	return nil
}
