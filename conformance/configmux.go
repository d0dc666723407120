package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
)

const (
	configService   = "quartet.config.v1.ConfigService"
	watchPodUpdates = configService + ".WatchPodUpdates"
	applyPod        = configService + ".ApplyPod"
	deletePod       = configService + ".DeletePod"
	configOp        = "quartet.config.v1.Op."
)

// ConfigMux returns the rules of configmux: quartet.config.v1, and the stream contract for its pods.
func ConfigMux() Suite {
	changes := []rule{
		configRule("apply-new", configOp+"OP_ADD", "The pod is new in its source", true, configApply),
		configRule("apply-changed", configOp+"OP_UPDATE",
			"Its spec, labels, annotations, deletion time or grace period has changed.", true, configUpdate),
		configRule("apply-unchanged", applyPod, "Applying an unchanged pod is a no-op", true, configUnchanged),
		configRule("apply-dry-run", "quartet.config.v1.ApplyPodRequest.dry_run",
			"Validate and default only; change nothing.", true, configDryRun),
		configRule("apply-invalid", applyPod,
			"with INVALID_ARGUMENT and one violation for each invalid field (google.rpc.BadRequest)", true, configInvalid),
		configRule("apply-durable", applyPod, `ApplyPod durably creates or replaces a pod of the source "local".`, true,
			configDurable),
		configRule("delete", configOp+"OP_REMOVE", "It was removed from its source.", true, configDelete),
		configRule("delete-unknown", deletePod, "with NOT_FOUND if the source has no such pod", true, configDeleteUnknown),
	}
	reads := []rule{
		configRule("snapshot", watchPodUpdates, `Keys are pod UIDs, and "source/NAME" for the state of a source.`, false,
			configSnapshot),
		configRule("source-after-pods", watchPodUpdates,
			"The message of a source always follows the pods of the same reading.", false, configSourceAfterPods),
		configRule("mode-snapshot", watchPodUpdates, `send full sets of pods under the single key "pods"`, false,
			configSets),
		configRule("mode-unknown", watchPodUpdates, "Fails with INVALID_ARGUMENT for an unknown mode.", false,
			configUnknownMode),
		configRule("list-pods", "quartet.config.v1.ListPodsResponse.pods", "Sorted by namespace and name.", false,
			configListPods),
		configRule("list-sources", "quartet.config.v1.ListSourcesResponse.sources", "Sorted by name.", false,
			configListSources),
	}
	return Suite{Service: "configmux", rules: slices.Concat(levelStreamRules(func(b *bench) watch {
		return newConfigBench(b).updates(configv1.Mode_MODE_INCREMENTAL)
	}), moreStreamRules("objects", watchObjects), reads, changes)}
}

// watchObjects is the watch of the config maps, for which the role observe is enough.
func watchObjects(b *bench) watch {
	client := configv1.NewConfigServiceClient(b.part.Conn)
	return watchOf(func(
		ctx context.Context, token []byte,
	) (interface {
		Recv() (*configv1.WatchObjectsResponse, error)
	}, error) {
		return client.WatchObjects(ctx, &configv1.WatchObjectsRequest{ResumeToken: token, Kind: "ConfigMap"}, ready())
	})
}

// configBench is a bench with a configmux.
type configBench struct {
	*bench
	client configv1.ConfigServiceClient
}

func newConfigBench(b *bench) *configBench {
	return &configBench{bench: b, client: configv1.NewConfigServiceClient(b.part.Conn)}
}

func configRule(name, comment, text string, changes bool, check func(context.Context, *configBench) error) rule {
	return plainRule(name, comment, text, func(ctx context.Context, b *bench) error {
		if changes && !b.part.AllowChanges {
			return skip("it applies a pod: allow that by --allow-changes")
		}
		c := newConfigBench(b)
		if err := c.eventually(ctx, func(ctx context.Context) error {
			_, err := c.client.ListSources(ctx, &configv1.ListSourcesRequest{}, ready())
			return err
		}); err != nil {
			return err
		}
		return check(ctx, c)
	})
}

// updates is the watch of the desired pods in a mode.
func (c *configBench) updates(mode configv1.Mode) watch {
	return func(ctx context.Context, token []byte) (receive, error) {
		stream, err := c.client.WatchPodUpdates(ctx,
			&configv1.WatchPodUpdatesRequest{ResumeToken: token, Mode: mode}, ready())
		if err != nil {
			return nil, err
		}
		return func() (message, error) {
			m, err := stream.Recv()
			if err != nil {
				return message{}, err
			}
			return message{Frame: m.GetFrame(), payload: m}, nil
		}, nil
	}
}

// updateOf returns the change of a pod in a message; nil if there is none.
func updateOf(m message) *configv1.PodUpdate {
	response, _ := m.payload.(*configv1.WatchPodUpdatesResponse)
	return response.GetPod()
}

// pod returns the pod that a rule applies.
func (c *configBench) pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "conformance-" + c.rule, Namespace: "default",
			UID: types.UID("conformance-" + c.rule)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.invalid/conformance:1"}}},
	}
}

// apply applies a pod, and deletes it after the check.
func (c *configBench) apply(ctx context.Context, pod *corev1.Pod, dryRun bool) (*configv1.PodUpdate, error) {
	bytes, err := pod.Marshal()
	if err != nil {
		return nil, err
	}
	resp, err := c.client.ApplyPod(ctx, &configv1.ApplyPodRequest{Pod: bytes, DryRun: dryRun}, ready())
	switch {
	case status.Code(err) == codes.Unimplemented:
		return nil, skip("this configmux has no source of applied pods")
	case err != nil:
		return nil, fmt.Errorf("ApplyPod: %w", err)
	}
	c.cleanup(func(ctx context.Context) error {
		if err := c.remove(ctx, pod); status.Code(err) != codes.NotFound {
			return err
		}
		return nil
	})
	return resp.GetPod(), nil
}

func (c *configBench) remove(ctx context.Context, pod *corev1.Pod) error {
	_, err := c.client.DeletePod(ctx, &configv1.DeletePodRequest{Namespace: pod.Namespace, Name: pod.Name}, ready())
	return err
}

// changed makes a change and waits for the DELTA of a pod with an operation.
func (c *configBench) changed(
	ctx context.Context, op configv1.Op, change func() (uid string, err error),
) (message, error) {
	s, _, err := c.watching(ctx, c.updates(configv1.Mode_MODE_INCREMENTAL), nil)
	if err != nil {
		return message{}, err
	}
	uid, err := change()
	if err != nil {
		return message{}, err
	}
	return s.until(ctx, c.patience, fmt.Sprintf("a DELTA of %s with %v", uid, op), func(m message) bool {
		return m.GetKind() == streamv1.Kind_KIND_DELTA && m.GetKey() == uid && updateOf(m).GetOp() == op
	})
}

// uidOf returns the UID of the pod of an update.
func uidOf(update *configv1.PodUpdate) (string, error) {
	var pod corev1.Pod
	if err := pod.Unmarshal(update.GetPod()); err != nil {
		return "", fmt.Errorf("decoding a pod: %w", err)
	}
	if pod.UID == "" {
		return "", errors.New("the pod has no UID")
	}
	return string(pod.UID), nil
}

func configApply(ctx context.Context, c *configBench) error {
	m, err := c.changed(ctx, configv1.Op_OP_ADD, func() (string, error) {
		update, err := c.apply(ctx, c.pod(), false)
		if err != nil {
			return "", err
		}
		if update.GetOp() != configv1.Op_OP_ADD {
			return "", fmt.Errorf("ApplyPod of a new pod returns %v", update.GetOp())
		}
		return uidOf(update)
	})
	if err != nil {
		return err
	}
	if source := updateOf(m).GetSource(); source != "local" {
		return fmt.Errorf("the source of an applied pod is %q", source)
	}
	return nil
}

func configUpdate(ctx context.Context, c *configBench) error {
	if _, err := c.apply(ctx, c.pod(), false); err != nil {
		return err
	}
	_, err := c.changed(ctx, configv1.Op_OP_UPDATE, func() (string, error) {
		changed := c.pod()
		changed.Labels = map[string]string{"changed": "yes"}
		update, err := c.apply(ctx, changed, false)
		if err != nil {
			return "", err
		}
		if update.GetOp() != configv1.Op_OP_UPDATE {
			return "", fmt.Errorf("ApplyPod of a changed pod returns %v", update.GetOp())
		}
		return uidOf(update)
	})
	return err
}

func configUnchanged(ctx context.Context, c *configBench) error {
	if _, err := c.apply(ctx, c.pod(), false); err != nil {
		return err
	}
	again, err := c.apply(ctx, c.pod(), false)
	if err != nil {
		return err
	}
	if again.GetOp() != configv1.Op_OP_UNSPECIFIED {
		return fmt.Errorf("ApplyPod of an unchanged pod returns %v", again.GetOp())
	}
	return nil
}

func configDryRun(ctx context.Context, c *configBench) error {
	update, err := c.apply(ctx, c.pod(), true)
	if err != nil {
		return err
	}
	uid, err := uidOf(update)
	if err != nil {
		return err
	}
	return c.isListed(ctx, uid, false)
}

// isListed returns an error unless ListPods has a pod, or has it not.
func (c *configBench) isListed(ctx context.Context, uid string, want bool) error {
	all, err := c.client.ListPods(ctx, &configv1.ListPodsRequest{}, ready())
	if err != nil {
		return fmt.Errorf("ListPods: %w", err)
	}
	found := false
	for _, update := range all.GetPods() {
		listed, err := uidOf(update)
		if err != nil {
			return err
		}
		found = found || listed == uid
	}
	if found != want {
		return fmt.Errorf("ListPods has the pod: %t, want %t", found, want)
	}
	return nil
}

func configInvalid(ctx context.Context, c *configBench) error {
	pod := c.pod()
	pod.Spec.Containers[0].Name = "Not A Name"
	_, err := c.apply(ctx, pod, false)
	var skipped *skipError
	if errors.As(err, &skipped) {
		return err
	}
	if err := wantCode("ApplyPod of an invalid pod", errors.Unwrap(err), codes.InvalidArgument); err != nil {
		return err
	}
	if len(status.Convert(errors.Unwrap(err)).Details()) == 0 {
		return errors.New("the error of an invalid pod has no violations")
	}
	return nil
}

func configDurable(ctx context.Context, c *configBench) error {
	if err := c.needsRestart(); err != nil {
		return err
	}
	update, err := c.apply(ctx, c.pod(), false)
	if err != nil {
		return err
	}
	uid, err := uidOf(update)
	if err != nil {
		return err
	}
	if err := c.part.Restart(ctx); err != nil {
		return fmt.Errorf("restarting it: %w", err)
	}
	return c.eventually(ctx, func(ctx context.Context) error { return c.isListed(ctx, uid, true) })
}

func configDelete(ctx context.Context, c *configBench) error {
	update, err := c.apply(ctx, c.pod(), false)
	if err != nil {
		return err
	}
	m, err := c.changed(ctx, configv1.Op_OP_REMOVE, func() (string, error) {
		if err := c.remove(ctx, c.pod()); err != nil {
			return "", fmt.Errorf("DeletePod: %w", err)
		}
		return uidOf(update)
	})
	if err != nil {
		return err
	}
	if !m.GetRemoved() {
		return errors.New("the DELTA of a deleted pod does not remove its key")
	}
	return nil
}

func configDeleteUnknown(ctx context.Context, c *configBench) error {
	err := c.remove(ctx, c.pod())
	if status.Code(err) == codes.Unimplemented {
		return skip("this configmux has no source of applied pods")
	}
	return wantCode("DeletePod of an unknown pod", err, codes.NotFound)
}

// configSnapshot compares the snapshot with the lists.
func configSnapshot(ctx context.Context, c *configBench) error {
	if c.part.AllowChanges {
		if _, err := c.apply(ctx, c.pod(), false); err != nil {
			return err
		}
	}
	return c.eventually(ctx, func(ctx context.Context) error {
		_, begun, err := c.watching(ctx, c.updates(configv1.Mode_MODE_INCREMENTAL), nil)
		if err != nil {
			return err
		}
		want := map[string]bool{}
		pods, err := c.client.ListPods(ctx, &configv1.ListPodsRequest{}, ready())
		if err != nil {
			return fmt.Errorf("ListPods: %w", err)
		}
		for _, update := range pods.GetPods() {
			uid, err := uidOf(update)
			if err != nil {
				return err
			}
			want[uid] = true
		}
		sources, err := c.client.ListSources(ctx, &configv1.ListSourcesRequest{}, ready())
		if err != nil {
			return fmt.Errorf("ListSources: %w", err)
		}
		for _, source := range sources.GetSources() {
			want["source/"+source.GetName()] = true
		}
		return sameKeys(want, begun)
	})
}

// sameKeys returns an error unless a snapshot has the keys.
func sameKeys(want map[string]bool, begun state) error {
	for key := range want {
		if begun.entries[key] == nil {
			return fmt.Errorf("the snapshot lacks %q", key)
		}
	}
	for key := range begun.entries {
		if !want[key] {
			return fmt.Errorf("the snapshot has %q, which the lists do not have", key)
		}
	}
	return nil
}

func configSourceAfterPods(ctx context.Context, c *configBench) error {
	if c.part.AllowChanges {
		if _, err := c.apply(ctx, c.pod(), false); err != nil {
			return err
		}
	}
	_, begun, err := c.watching(ctx, c.updates(configv1.Mode_MODE_INCREMENTAL), nil)
	if err != nil {
		return err
	}
	pods, told := 0, map[string]bool{}
	for _, key := range begun.order {
		response, _ := begun.entries[key].(*configv1.WatchPodUpdatesResponse)
		if source := response.GetSource(); source.GetReady() {
			told[source.GetName()] = true
		}
		if response.GetPod() == nil {
			continue
		}
		pods++
		if told[response.GetPod().GetSource()] {
			return fmt.Errorf("the snapshot has a pod of the source %q after the source", response.GetPod().GetSource())
		}
	}
	if pods == 0 {
		return skip("there are no pods")
	}
	return nil
}

func configSets(ctx context.Context, c *configBench) error {
	_, begun, err := c.watching(ctx, c.updates(configv1.Mode_MODE_SNAPSHOT), nil)
	if err != nil {
		return err
	}
	response, _ := begun.entries["pods"].(*configv1.WatchPodUpdatesResponse)
	if response.GetSet() == nil || len(begun.entries) != 1 {
		return fmt.Errorf("the snapshot has the keys %v", begun.order)
	}
	return nil
}

func configUnknownMode(ctx context.Context, c *configBench) error {
	next, err := c.updates(configv1.Mode(99))(ctx, nil)
	if err == nil {
		_, err = next()
	}
	return wantCode("WatchPodUpdates with the mode 99", err, codes.InvalidArgument)
}

func configListPods(ctx context.Context, c *configBench) error {
	if c.part.AllowChanges {
		for _, name := range []string{"b", "a"} {
			pod := c.pod()
			pod.Name, pod.UID = pod.Name+"-"+name, pod.UID+types.UID("-"+name)
			if _, err := c.apply(ctx, pod, false); err != nil {
				return err
			}
		}
	}
	all, err := c.client.ListPods(ctx, &configv1.ListPodsRequest{}, ready())
	if err != nil {
		return fmt.Errorf("ListPods: %w", err)
	}
	var names []string
	for _, update := range all.GetPods() {
		var pod corev1.Pod
		if err := pod.Unmarshal(update.GetPod()); err != nil {
			return fmt.Errorf("decoding a pod: %w", err)
		}
		names = append(names, pod.Namespace+"\x00"+pod.Name)
	}
	return sorted(names)
}

// sorted returns an error unless names are sorted, and skips the rule if there are too few.
func sorted(names []string) error {
	if len(names) < 2 {
		return skip("there are fewer than two")
	}
	if !slices.IsSorted(names) {
		return fmt.Errorf("the order is %q", names)
	}
	return nil
}

func configListSources(ctx context.Context, c *configBench) error {
	all, err := c.client.ListSources(ctx, &configv1.ListSourcesRequest{}, ready())
	if err != nil {
		return fmt.Errorf("ListSources: %w", err)
	}
	var names []string
	for _, source := range all.GetSources() {
		names = append(names, source.GetName())
	}
	return sorted(names)
}
