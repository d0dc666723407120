// Command kube contains several programs of a Kubernetes cluster: kube-apiserver, kube-controller-manager,
// kube-scheduler, kube-proxy, kubectl, kubeadm and metrics-server. The name of its file selects the program, or else
// its first argument:
//
//	ln -s kube kubectl && ./kubectl version
//	./kube kube-scheduler --help
//
// They are Kubernetes' own, unchanged. They have most of their code in common, so that one program is compiled, linked,
// and stored in an image in a third of the time and space of separate ones.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // time zones of cron jobs, for an image that has none

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // authentication plugins of kubeconfigs
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the clients
	_ "k8s.io/component-base/metrics/prometheus/version"  // the metric kubernetes_build_info
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubeadmerrors "k8s.io/kubernetes/cmd/kubeadm/app/util/errors"
	metricsserver "sigs.k8s.io/metrics-server/cmd/metrics-server/app"
)

func main() { os.Exit(run()) }

// run returns the exit code.
func run() int {
	programs := map[string]func() int{
		"kube-apiserver":          server(apiserver.NewAPIServerCommand),
		"kube-controller-manager": server(controllermanager.NewControllerManagerCommand),
		"kube-scheduler":          server(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
		"kube-proxy":              server(proxy.NewProxyCommand),
		"metrics-server": server(func() *cobra.Command {
			return metricsserver.NewMetricsServerCommand(genericapiserver.SetupSignalHandler())
		}),
		"kubectl": kubectl,
		"kubeadm": func() int {
			kubeadmerrors.HandleError(kubeadm.Run()) // ends with the error's code, if there is one
			return 0
		},
	}
	if program, ok := programs[filepath.Base(os.Args[0])]; ok {
		return program()
	}
	if len(os.Args) > 1 {
		if program, ok := programs[os.Args[1]]; ok {
			os.Args = os.Args[1:]
			return program()
		}
	}
	var names []string
	for name := range programs {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(os.Stderr, "kube: start it under the name of one of its programs, or with the name as the first argument: %s\n", strings.Join(names, ", "))
	return 2
}

// server returns the function that runs a server until it gets a signal to end.
func server(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

// kubectl parses the verbosity of its logs from the arguments before it does anything else, because it logs from its
// start.
func kubectl() int {
	if _, err := logs.GlogSetter(cmd.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, "kubectl:", err)
		return 1
	}
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints the error and exits with its code
	}
	return 0
}
