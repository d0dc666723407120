package show

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/containerlog"
	"github.com/quartet-node/quartet/internal/layout"
)

// logsOptions are the flags of logs.
type logsOptions struct {
	namespace string
	container string
	follow    bool
	tail      int64
	previous  bool
}

func (a *querier) logsCommand() *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs POD",
		Short: "Print the log of a container of a pod",
		Long: "Print the standard output and standard error of a container of a pod.\n\n" +
			"The log is read from its files on this machine, including rotated ones, so it\n" +
			"is available after the container has ended.",
		Example: "  quartet logs hello-" + hostname() + " -c web -f --tail 10",
		Args:    onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.follow && o.previous {
				return errors.New("-f with --previous: the previous container writes no more; leave one out")
			}
			return a.logs(cmd, args[0], o)
		},
	}
	addNamespace(cmd.Flags(), &o.namespace)
	cmd.Flags().
		StringVarP(&o.container, "container", "c", "", "`NAME` of the container; needed when the pod has more than one")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "wait for further output, until the container ends")
	cmd.Flags().Int64Var(&o.tail, "tail", -1, "print the last `N` lines only; -1 prints all")
	cmd.Flags().BoolVarP(&o.previous, "previous", "p", false, "print the log of the previous instance of the container")
	a.addFlags(cmd, nil, nil)
	return cmd
}

// onePod validates the arguments.
func onePod(_ *cobra.Command, args []string) error {
	switch len(args) {
	case 1:
		return nil
	case 0:
		return errors.New("name a pod: quartet logs POD; 'quartet get pods' lists them")
	default:
		return fmt.Errorf("name one pod, not %d: quartet logs POD -c CONTAINER", len(args))
	}
}

func (a *querier) logs(cmd *cobra.Command, name string, o logsOptions) error {
	s := selection{namespace: o.namespace, names: []string{name}}
	if err := s.check(); err != nil {
		return err
	}
	statuses, err := a.listStatuses(cmd.Context())
	if err != nil {
		return err
	}
	// The pod's spec distinguishes init containers and names containers that were not created yet; the log can be read
	// without it.
	pods, podsErr := a.listPods(cmd.Context())
	pod, observed, err := findPod(s, pods, statuses)
	if err != nil {
		return errors.Join(err, podsErr)
	}
	containerName, err := chooseContainer(pod, observed, o.container)
	if err != nil {
		return err
	}
	container, err := chooseAttempt(pod, observed, containerName, o.previous)
	if err != nil {
		return err
	}
	if container.GetLogPath() == "" {
		return fmt.Errorf("container %s of pod %s has no log file: it was created without one", containerName, name)
	}
	return a.readLog(cmd, observed.GetUid(), container, o)
}

// findPod returns the known parts of a pod; one of them may be missing.
func findPod(s selection, pods []podView, statuses []*lifecyclev1.PodStatus) (*v1.Pod, *lifecyclev1.PodStatus, error) {
	podNames, observedNames := make([]podName, len(pods)), make([]podName, len(statuses))
	for i, v := range pods {
		podNames[i] = nameOf(v)
	}
	titles := make([]string, len(statuses))
	for i, status := range statuses {
		observedNames[i] = podName{status.GetNamespace(), status.GetName(), nodeOf(pods), status.GetUid()}
		titles[i] = title(status.GetNamespace(), status.GetName())
	}
	var pod *v1.Pod
	seen := s.find(s.names[0], observedNames)
	if i := s.find(s.names[0], podNames); i >= 0 {
		pod = pods[i].pod
		seen = slices.IndexFunc(
			statuses,
			func(status *lifecyclev1.PodStatus) bool { return status.GetUid() == string(pod.UID) },
		)
	}
	var observed *lifecyclev1.PodStatus
	if seen >= 0 {
		observed = statuses[seen]
	}
	if pod == nil && observed == nil {
		slices.Sort(titles)
		return nil, nil, s.noSuchPod(s.names[0], slices.Compact(titles))
	}
	return pod, observed, nil
}

// containerNames returns the names of a pod's containers and init containers.
func containerNames(pod *v1.Pod, observed *lifecyclev1.PodStatus) (names, inits []string) {
	if pod != nil {
		for _, c := range pod.Spec.Containers {
			names = append(names, c.Name)
		}
		for _, c := range pod.Spec.InitContainers {
			inits = append(inits, c.Name)
		}
		return names, inits
	}
	for _, c := range observed.GetContainers() {
		names = append(names, c.GetName())
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func chooseContainer(pod *v1.Pod, observed *lifecyclev1.PodStatus, wanted string) (string, error) {
	names, inits := containerNames(pod, observed)
	list := strings.Join(names, ", ")
	if len(inits) > 0 {
		list += "; init containers: " + strings.Join(inits, ", ")
	}
	switch {
	case wanted != "" && slices.Contains(append(names, inits...), wanted):
		return wanted, nil
	case wanted != "":
		return "", fmt.Errorf("the pod has no container %q: its containers are %s", wanted, list)
	case len(names) == 1:
		return names[0], nil
	case len(names) == 0:
		return "", errors.New("nothing of the pod has been created yet: see 'quartet get pods'")
	default:
		return "", fmt.Errorf("the pod has more than one container: choose with -c one of %s", list)
	}
}

// chooseAttempt returns the last container of a name, or the previous one. As in kubectl, the previous one is the last
// termination in the status: while a crashed container waits for its restart, that is the crashed one.
func chooseAttempt(
	pod *v1.Pod,
	observed *lifecyclev1.PodStatus,
	name string,
	previous bool,
) (*lifecyclev1.Container, error) {
	var attempts []*lifecyclev1.Container
	for _, c := range observed.GetContainers() {
		if c.GetName() == name {
			attempts = append(attempts, c)
		}
	}
	slices.SortFunc(attempts, func(x, y *lifecyclev1.Container) int { return cmp.Compare(y.GetAttempt(), x.GetAttempt()) })
	switch {
	case len(attempts) == 0 && hasEnded(pod, name):
		return nil, fmt.Errorf("container %s has ended and was removed with its log%s", name, reasonOf(pod))
	case len(attempts) == 0:
		return nil, fmt.Errorf("container %s has not been created yet%s", name, waitingReason(pod, name))
	case !previous:
		return attempts[0], nil
	case attempts[0].GetId() == lastTermination(pod, name):
		return attempts[0], nil
	case len(attempts) == 1:
		return nil, fmt.Errorf(
			"container %s has no previous log: it was not restarted, or what was before was cleaned up",
			name,
		)
	default:
		return attempts[1], nil
	}
}

// lastTermination returns the ID of the container in a pod's last termination; empty if there is none.
func lastTermination(pod *v1.Pod, name string) string {
	if pod == nil {
		return ""
	}
	for _, c := range append(slices.Clone(pod.Status.InitContainerStatuses), pod.Status.ContainerStatuses...) {
		if c.Name == name && c.LastTerminationState.Terminated != nil {
			// The status has RUNTIME://ID.
			_, id, _ := strings.Cut(c.LastTerminationState.Terminated.ContainerID, "://")
			return id
		}
	}
	return ""
}

// hasEnded says whether a pod's status has the end of a container.
func hasEnded(pod *v1.Pod, name string) bool {
	return pod != nil &&
		slices.ContainsFunc(
			slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses),
			func(c v1.ContainerStatus) bool {
				return c.Name == name && c.State.Terminated != nil
			},
		)
}

// reasonOf is why a pod has ended, for the end of a sentence; empty when its status has no reason.
func reasonOf(pod *v1.Pod) string {
	if pod.Status.Reason == "" {
		return ""
	}
	return ": the pod is " + string(pod.Status.Phase) + ", " + pod.Status.Reason
}

func waitingReason(pod *v1.Pod, name string) string {
	if pod == nil {
		return ""
	}
	for _, c := range append(slices.Clone(pod.Status.InitContainerStatuses), pod.Status.ContainerStatuses...) {
		if c.Name == name && c.State.Waiting != nil && c.State.Waiting.Reason != "" {
			return strings.TrimSuffix(": "+c.State.Waiting.Reason+": "+oneLine(c.State.Waiting.Message), ": ")
		}
	}
	return ""
}

func (a *querier) readLog(
	cmd *cobra.Command,
	podUID string,
	container *lifecyclev1.Container,
	o logsOptions,
) (err error) {
	conn, err := a.connect(cmd.Context(), layout.PLEG)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	watched := &watched{client: lifecyclev1.NewLifecycleServiceClient(conn), podUID: podUID, container: container.GetId()}
	// Both streams go to standard output, as in kubectl, so that the output can be searched.
	err = containerlog.Read(cmd.Context(), container.GetLogPath(), containerlog.Options{
		Tail: max(o.tail, -1), Follow: o.follow, Running: watched.running,
	}, cmd.OutOrStdout())
	switch {
	case err == nil || cmd.Context().Err() != nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: run the command as root", err)
	default:
		return err
	}
}

// watched is the container whose log is followed. It queries pleg, so that the command needs no access to the runtime.
type watched struct {
	client    grpcLifecycle
	podUID    string
	container string
}

// grpcLifecycle is the required part of pleg's client.
type grpcLifecycle interface {
	GetPodStatus(
		ctx context.Context,
		in *lifecyclev1.GetPodStatusRequest,
		opts ...grpc.CallOption,
	) (*lifecyclev1.GetPodStatusResponse, error)
}

// running reports whether the container runs. It is true while pleg is unreachable, and false if the pod does not exist
// any more.
func (w *watched) running(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := w.client.GetPodStatus(ctx, &lifecyclev1.GetPodStatusRequest{Uid: w.podUID})
	switch code := status.Code(err); {
	case code == codes.DeadlineExceeded, code == codes.Unavailable:
		return true, nil
	case code == codes.NotFound:
		return false, nil
	case err != nil:
		return false, err
	}
	return slices.ContainsFunc(response.GetStatus().GetContainers(), func(c *lifecyclev1.Container) bool {
		return c.GetId() == w.container && c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
	}), nil
}
