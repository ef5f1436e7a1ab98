import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs the command line tools of Kafka one after the other in one JVM, for a JVM of each takes
 * seconds. A line of standard input is what one tool reads from its own, its class and its arguments,
 * separated by tabs; %n stands for the end of a line. The answer is what it printed, and then a line
 * with a form feed and its exit code.
 */
public class Tools {
    /** Takes a tool out of its main. It says nothing, for some catch it, and print it. */
    private static class Ended extends RuntimeException {
        Ended() {
            super("", null, false, false);
        }

        @Override
        public String toString() {
            return "";
        }
    }

    private static Integer code; // of the first exit

    public static void main(String[] args) throws Exception {
        Exit.Procedure end = (exit, message) -> {
            if (message != null) {
                System.err.println(message);
            }
            code = code == null ? exit : code;
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        PrintStream out = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split("\t", -1);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream to = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(to);
            System.setErr(to);
            System.setIn(new ByteArrayInputStream(words[0].replace("%n", "\n").getBytes(StandardCharsets.UTF_8)));
            int exit = run(words[1], Arrays.copyOfRange(words, 2, words.length));
            out.print(printed.toString(StandardCharsets.UTF_8));
            out.println("\n\f" + exit);
            out.flush();
        }
    }

    private static int run(String name, String[] args) throws ReflectiveOperationException {
        code = null;
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException e) {
            if (!(e.getCause() instanceof Ended)) {
                e.getCause().printStackTrace();
                return 1;
            }
        }
        return code == null ? 0 : code;
    }
}
