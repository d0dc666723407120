package show

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// title returns the name of a pod without the namespace "default".
func title(namespace, name string) string {
	if namespace == "" || namespace == metav1.NamespaceDefault {
		return name
	}
	return namespace + "/" + name
}

// selection selects pods for a command.
type selection struct {
	// namespace is the value of -n; empty for all namespaces.
	namespace string
	// names lists pods by NAME or NAMESPACE/NAME, or by UID; empty for all of the namespace. NAME is the pod's name, or
	// the name in the manifest of a static pod, which lacks the node's suffix.
	names []string
}

// addNamespace adds -n.
func addNamespace(flags *pflag.FlagSet, namespace *string) {
	flags.StringVarP(
		namespace,
		"namespace",
		"n",
		"",
		"`NAMESPACE` of the pods; without it pods are named by NAMESPACE/NAME, or by NAME in \"default\"",
	)
}

// check fails if a name contradicts the namespace.
func (s selection) check() error {
	for _, name := range s.names {
		if namespace, _, ok := strings.Cut(name, "/"); ok && s.namespace != "" && namespace != s.namespace {
			return fmt.Errorf(
				"%q is not in the namespace %q: leave out -n, or the namespace before the slash",
				name,
				s.namespace,
			)
		}
	}
	return nil
}

// podName holds the names of a pod.
type podName struct {
	namespace, name string
	// node is the name of the node that it is on.
	node string
	uid  string
}

func nameOf(v podView) podName {
	return podName{v.pod.Namespace, v.pod.Name, v.pod.Spec.NodeName, string(v.pod.UID)}
}

// find returns the index of the pod that a name selects, or -1. A full name takes precedence over one without the
// node's suffix.
func (s selection) find(argument string, names []podName) int {
	exact := slices.IndexFunc(
		names,
		func(n podName) bool { return s.means(argument, podName{n.namespace, n.name, "", n.uid}) },
	)
	if exact >= 0 {
		return exact
	}
	return slices.IndexFunc(names, func(n podName) bool { return s.means(argument, n) })
}

// choose returns the selected pods in the order of the arguments.
func (s selection) choose(all []podView) ([]podView, error) {
	if len(s.names) == 0 {
		return slices.DeleteFunc(all, func(v podView) bool { return !s.inNamespace(v.pod.Namespace) }), nil
	}
	names, titles := make([]podName, len(all)), make([]string, len(all))
	for i, v := range all {
		names[i], titles[i] = nameOf(v), title(v.pod.Namespace, v.pod.Name)
	}
	var views []podView
	for _, name := range s.names {
		found := s.find(name, names)
		if found < 0 {
			return nil, s.noSuchPod(name, titles)
		}
		views = append(views, all[found])
	}
	return views, nil
}

// means reports whether a name selects a pod.
func (s selection) means(argument string, pod podName) bool {
	namespace := pod.namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	if argument == pod.uid && argument != "" && s.inNamespace(namespace) {
		return true
	}
	wanted := s.namespace
	if wanted == "" {
		wanted = metav1.NamespaceDefault
	}
	if before, after, ok := strings.Cut(argument, "/"); ok {
		wanted, argument = before, after
	}
	return wanted == namespace && (argument == pod.name || pod.node != "" && argument+"-"+pod.node == pod.name)
}

// has reports whether a pod is selected.
func (s selection) has(pod podName) bool {
	if len(s.names) == 0 {
		return s.inNamespace(pod.namespace)
	}
	return slices.ContainsFunc(s.names, func(argument string) bool { return s.means(argument, pod) })
}

func (s selection) inNamespace(namespace string) bool {
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return s.namespace == "" || s.namespace == namespace
}

// noSuchPod returns the error for a name without a pod.
func (s selection) noSuchPod(name string, existing []string) error {
	if s.namespace != "" && !strings.Contains(name, "/") {
		name = s.namespace + "/" + name
	}
	if len(existing) == 0 {
		return fmt.Errorf("there is no pod %q: there are no pods on this node", name)
	}
	return fmt.Errorf("there is no pod %q: there are %s", name, strings.Join(existing, ", "))
}

// where completes the message "There are no pods".
func (s selection) where() string {
	if s.namespace == "" {
		return "on this node"
	}
	return fmt.Sprintf("in the namespace %q on this node", s.namespace)
}
